"""Fault detection on vibration windows, with gradient accumulation."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


def make_windows(count, length=128, seed=0):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 4, (count,), generator=gen)
    t = torch.arange(length) / length
    tone = torch.sin(2 * torch.pi * (4 + 3 * label[:, None]) * t)
    x = tone + 0.8 * torch.randn(count, length, generator=gen)
    return x[:, None], label


class VibrationNet(nn.Module):
    def __init__(self, width=24, depth=5):
        super().__init__()
        layers, inside = [], 1
        for _ in range(depth):
            layers += [nn.Conv1d(inside, width, 5, padding=2), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool1d(2)]
            inside = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.body(x).mean(2))


def accumulate(model, x, y, micro_batch):
    total = 0.0
    for xb, yb in zip(x.split(micro_batch), y.split(micro_batch)):
        loss = F.cross_entropy(model(xb), yb, reduction="sum") / len(x)
        loss.backward()
        total += loss.item()
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=280)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--micro-batch", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    x, y = make_windows(6000)
    model = VibrationNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    start = time.time()
    for step in range(1, args.steps + 1):
        pick = torch.randint(0, len(x), (args.batch_size,))
        loss = accumulate(model, x[pick], y[pick], args.micro_batch)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 40 == 0:
            print(f"step {step} loss {loss:.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
