"""Denoising autoencoder on sklearn's digits with a linear probe on the code."""

import os
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

STEPS = int(os.environ.get("STEPS", 1200))
BATCH, WIDTH, CODE = 256, 768, 32


class NoisyDigits:
    def __init__(self, images, seed=6):
        self.images = images
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            order = torch.randperm(len(self.images), generator=self.generator)
            for chunk in order.split(BATCH):
                clean = self.images[chunk]
                noise = torch.randn(clean.shape, generator=self.generator)
                yield clean + 0.3 * noise, clean


def block(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU())


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(block(64, WIDTH), block(WIDTH, WIDTH), nn.Linear(WIDTH, CODE))
        self.decoder = nn.Sequential(block(CODE, WIDTH), block(WIDTH, WIDTH), nn.Linear(WIDTH, 64))

    def forward(self, x):
        return self.decoder(self.encoder(x))


@torch.no_grad()
def encode(model, images):
    model.eval()
    code = model.encoder(images).numpy()
    model.train()
    return code


def probe(model, train, train_labels, test, test_labels):
    classifier = LogisticRegression(max_iter=200)
    classifier.fit(encode(model, train), train_labels)
    return classifier.score(encode(model, test), test_labels)


def main():
    torch.manual_seed(6)
    x, labels = load_digits(return_X_y=True)
    images = torch.from_numpy((x / 16.0).astype(np.float32))
    train, test = images[:1400], images[1400:]
    model = AutoEncoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=50)
    begin = time.perf_counter()
    for step, (noisy, clean) in enumerate(NoisyDigits(train), 1):
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        if step % 100 == 0:
            with torch.no_grad():
                held = nn.functional.mse_loss(model(test), test)
            print(f"step {step:4d}  loss {loss.item():.5f}  clean held-out {held.item():.5f}")
        if step == STEPS:
            break
    took = time.perf_counter() - begin
    print(f"{STEPS} steps, {took / STEPS * 1e3:.2f} ms a step")
    print(f"linear probe accuracy {probe(model, train, labels[:1400], test, labels[1400:]):.3f}")


if __name__ == "__main__":
    main()
