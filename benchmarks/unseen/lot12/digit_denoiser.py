"""Denoiser for digit scans; a background thread prepares the batches."""

import threading
import time
from collections import deque

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def load_images():
    images = load_digits().images.astype(np.float32) / 16.0
    return np.kron(images, np.ones((1, 3, 3), dtype=np.float32))


class Prefetcher:
    """Iterates over noisy batches that a thread makes ahead of time."""

    def __init__(self, images, batch_size, steps, depth=1, interval=0.05):
        self.images = images
        self.batch_size = batch_size
        self.steps = steps
        self.depth = depth
        self.interval = interval
        self.ready = deque()

    def make_batch(self, rng):
        index = rng.integers(0, len(self.images), size=self.batch_size)
        clean = self.images[index]
        noisy = clean + 0.25 * rng.standard_normal(clean.shape, dtype=np.float32)
        return torch.from_numpy(noisy).unsqueeze(1), torch.from_numpy(clean).unsqueeze(1)

    def fill(self):
        rng = np.random.default_rng(0)
        for _ in range(self.steps):
            batch = self.make_batch(rng)
            while len(self.ready) >= self.depth:
                time.sleep(self.interval)
            self.ready.append(batch)

    def __iter__(self):
        threading.Thread(target=self.fill, daemon=True).start()
        for _ in range(self.steps):
            while not self.ready:
                time.sleep(self.interval)
            yield self.ready.popleft()


def build_model(width=12):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 1, 3, padding=1),
    )


def main():
    torch.manual_seed(0)
    batches = Prefetcher(load_images(), batch_size=64, steps=200)
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    started = time.time()
    for step, (noisy, clean) in enumerate(batches):
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.5f} after {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
