"""Forecasts a day of electric load from a week of history (decomposition + linear + residual net)."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", 2400))
PAST, AHEAD, CHANNELS = 168, 24, 4


def make_series(hours=12_000, seed=11):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)[:, None]
    phase = rng.uniform(0, 6.28, CHANNELS)
    daily = np.sin(2 * np.pi * t / 24 + phase)
    weekly = 0.5 * np.sin(2 * np.pi * t / 168 + phase[::-1])
    noise = np.cumsum(rng.normal(0, 0.02, (hours, CHANNELS)), 0) + rng.normal(0, 0.1, (hours, CHANNELS))
    series = daily + weekly + noise
    return ((series - series.mean(0)) / series.std(0)).astype(np.float32)


class Windows(Dataset):
    def __init__(self, series):
        self.series = torch.from_numpy(series)

    def __len__(self):
        return len(self.series) - PAST - AHEAD + 1

    def __getitem__(self, start):
        middle = start + PAST
        return self.series[start:middle], self.series[middle:middle + AHEAD]


def provider(series, flag):
    if flag == "train":
        part, shuffle, batch_size = series[:10_500], True, 64
    else:
        part, shuffle, batch_size = series[10_500:11_500], False, 1
    data = Windows(part)
    return DataLoader(data, batch_size=batch_size, shuffle=shuffle, drop_last=shuffle)


class Forecaster(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.smooth = nn.AvgPool1d(25, stride=1, padding=12, count_include_pad=False)
        self.trend = nn.Linear(PAST, AHEAD)
        self.season = nn.Sequential(nn.Linear(PAST, width), nn.GELU(), nn.Linear(width, AHEAD))

    def forward(self, x):
        x = x.transpose(1, 2)
        trend = self.smooth(x)
        return (self.trend(trend) + self.season(x - trend)).transpose(1, 2)


@torch.no_grad()
def validate(model, loader, criterion):
    model.eval()
    losses = []
    for x, y in loader:
        losses.append(criterion(model(x), y).item())
    model.train()
    return float(np.mean(losses))


def main():
    torch.manual_seed(11)
    series = make_series()
    train_loader, val_loader = provider(series, "train"), provider(series, "val")
    model = Forecaster()
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    best, step, begin = float("inf"), 0, time.perf_counter()
    while step < STEPS:
        for x, y in train_loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                val = validate(model, val_loader, criterion)
                best = min(best, val)
                if step % 240 == 0:
                    print(f"{step}: train {loss.item():.4f} val {val:.4f} best {best:.4f}")
            if step == STEPS:
                break
    took = time.perf_counter() - begin
    print(f"{STEPS} steps, {took / STEPS * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
