"""Forecast tomorrow's electric load from the week before."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_series(hours=24 * 800, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    daily = np.sin(2 * np.pi * t / 24)
    weekly = 0.5 * np.sin(2 * np.pi * t / 168)
    return daily + weekly + 0.1 * rng.standard_normal(hours)


def make_windows(series, history=168, horizon=24, stride=2):
    view = np.lib.stride_tricks.sliding_window_view(series, history + horizon)[::stride]
    return torch.from_numpy(view[:, :history].copy()), torch.from_numpy(view[:, history:].copy())


class Forecaster(nn.Module):
    def __init__(self, history=168, horizon=24, width=640):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(history, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, horizon)

    def forward(self, x):
        return self.head(self.encoder(x))


def evaluate(model, x, y):
    with torch.no_grad():
        return (model(x) - y).abs().mean().item()


def main():
    torch.manual_seed(0)
    x, y = make_windows(make_series())
    split = len(x) - 500
    loader = DataLoader(TensorDataset(x[:split], y[:split]), batch_size=256, shuffle=True, drop_last=True)
    model = Forecaster().to(x.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    start = time.time()
    for epoch in range(6):
        for step, (history, target) in enumerate(loader):
            loss = nn.functional.mse_loss(model(history), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 12 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} ({time.time() - start:.1f}s)")
        print(f"epoch {epoch} mae {evaluate(model, x[split:], y[split:]):.4f}")


if __name__ == "__main__":
    main()
