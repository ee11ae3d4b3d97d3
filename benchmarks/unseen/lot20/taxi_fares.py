"""Trip duration from trip records: a residual MLP on numeric and Fourier features (synthetic city)."""

import argparse
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def trips(count, seed):
    rng = np.random.default_rng(seed)
    start, end = rng.normal(0, 4, (count, 2)), rng.normal(0, 4, (count, 2))
    hour = rng.choice(24, count, p=np.array([2] * 6 + [6] * 12 + [4] * 6) / 108) + rng.random(count)
    weekday = rng.integers(0, 7, count)
    passengers = rng.integers(1, 6, count)
    rain = rng.random(count) < 0.15
    distance = np.abs(start - end).sum(1)
    centre = np.exp(-(np.hypot(*start.T) + np.hypot(*end.T)) / 6)
    rush = np.exp(-((hour - 8.5) ** 2) / 3) + np.exp(-((hour - 17.5) ** 2) / 4)
    speed = 32 / (1 + 1.2 * centre * (1 + rush * (weekday < 5))) * np.where(rain, 0.8, 1)
    minutes = 60 * distance / speed + rng.gamma(2, 0.7, count)
    numeric = np.column_stack([start, end, hour, weekday, passengers, rain]).astype(np.float32)
    return torch.from_numpy(numeric), torch.from_numpy(np.log1p(minutes).astype(np.float32))


class FourierFeatures(nn.Module):
    def __init__(self, inputs, count, scale=0.3):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(inputs, count) * scale)

    def forward(self, x):
        angle = 2 * math.pi * x @ self.frequencies
        return torch.cat([x, angle.sin(), angle.cos()], -1)


class Block(nn.Module):
    def __init__(self, width, expand=2, dropout=0.05):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, expand * width)
        self.down = nn.Linear(expand * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.relu(self.up(self.norm(x)))))


class TripNet(nn.Module):
    def __init__(self, inputs=8, width=320, depth=3, fourier=48):
        super().__init__()
        self.fourier = FourierFeatures(inputs, fourier)
        self.enter = nn.Linear(inputs + 2 * fourier, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, x):
        return self.leave(self.blocks(self.enter(self.fourier(x)))).squeeze(-1)


@torch.no_grad()
def rmse(model, x, y):
    model.eval()
    error = torch.cat([model(a) - b for a, b in zip(x.split(2048), y.split(2048))])
    model.train()
    return error.square().mean().sqrt().item()


def learning_rate(step, total, peak=2e-3, warmup=50):
    if step < warmup:
        return peak * step / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    x, y = trips(120_000, seed=1)
    x_test, y_test = trips(4_000, seed=2)
    mean, std = x.mean(0), x.std(0)
    x, x_test = (x - mean) / std, (x_test - mean) / std

    model = TripNet()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-3)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    total = torch.zeros(())
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        rows = torch.randint(len(x), (args.batch,))
        loss = F.huber_loss(model(x[rows]), y[rows], delta=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 100 == 0:
            print(f"step {step}: mean loss {total.item() / 100:.5f}, test rmse {rmse(model, x_test, y_test):.4f}")
            total.zero_()
    print(f"{(time.perf_counter() - start) / args.steps * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
