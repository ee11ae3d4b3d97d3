"""Next-hour temperature for a network of weather stations."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HOURS, CHANNELS = 48, 8


def write_archive(path, n_windows, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(HOURS + 1)
    phase = rng.uniform(0, 2 * np.pi, (n_windows, 1, CHANNELS))
    amp = rng.gamma(3.0, 1.0, (n_windows, 1, CHANNELS))
    level = rng.normal(0, 2, (n_windows, 1, CHANNELS))
    series = level + amp * np.sin(2 * np.pi * t[None, :, None] / 24 + phase)
    series += rng.normal(0, 0.2, series.shape)
    np.savez(
        path,
        windows=series[:, :-1].astype(np.float32),
        target=series[:, -1, 0].astype(np.float32),
        station=rng.integers(0, 40, n_windows),
    )


class StationWindows(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.length = len(self.archive["target"])

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        window = torch.from_numpy(self.archive["windows"][i])
        target = torch.tensor(self.archive["target"][i])
        station = int(self.archive["station"][i])
        return window, station, target


class Forecaster(nn.Module):
    def __init__(self, stations=40, hidden=96):
        super().__init__()
        self.station = nn.Embedding(stations, 16)
        self.rnn = nn.GRU(CHANNELS, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden + 16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, window, station):
        _, h = self.rnn(window)
        return self.head(torch.cat([h[-1], self.station(station)], dim=1)).squeeze(1)


def fit(model, loader, epochs, lr=2e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    criterion = nn.SmoothL1Loss()
    for epoch in range(epochs):
        running = 0.0
        for window, station, target in loader:
            loss = criterion(model(window, station), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            running += loss.item()
        print(f"epoch {epoch}  loss {running / len(loader):.4f}")


def main():
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stations.npz"
        write_archive(path, 2400, seed=3)
        dataset = StationWindows(path)
        loader = DataLoader(dataset, batch_size=24, shuffle=True, drop_last=True)
        fit(Forecaster(), loader, epochs=4)


if __name__ == "__main__":
    main()
