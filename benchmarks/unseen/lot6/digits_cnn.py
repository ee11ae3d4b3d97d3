"""A convolutional classifier for scikit-learn's digits."""

import time

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self):
        raw = load_digits()
        self.images = np.pad(raw.images.astype(np.float32) / 16.0, ((0, 0), (4, 4), (4, 4)))
        self.labels = raw.target.astype(np.int64)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        dy, dx = np.random.randint(-2, 3, size=2)
        image = np.roll(self.images[i], (dy, dx), axis=(0, 1))
        image = image + np.random.randn(16, 16).astype(np.float32) * 0.05
        return torch.from_numpy(image)[None], self.labels[i]


class Block(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU(),
            nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
        )
        self.skip = nn.Conv2d(c_in, c_out, 1)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def build():
    return nn.Sequential(
        Block(1, 48),
        Block(48, 48),
        nn.MaxPool2d(2),
        Block(48, 96),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 10),
    )


def main():
    torch.manual_seed(0)
    loader = DataLoader(Digits(), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    step, start = 0, time.time()
    for epoch in range(4):
        total = torch.zeros(())
        for images, labels in loader:
            loss = loss_fn(model(images), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
            step += 1
        print(f"epoch {epoch} loss {total.item() / len(loader):.4f}")
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
