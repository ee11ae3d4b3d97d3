"""Heartbeat classification from an archive of ECG windows."""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_archive(path, beats=3000, length=360, seed=6):
    rng = np.random.default_rng(seed)
    t = np.linspace(-1, 1, length)
    label = rng.integers(0, 4, beats)
    width = np.array([0.03, 0.06, 0.03, 0.1])[label][:, None] * rng.uniform(0.8, 1.2, (beats, 1))
    shift = rng.uniform(-0.1, 0.1, (beats, 1))
    peak = np.exp(-(((t - shift) / width) ** 2))
    late = np.array([0.3, 0.3, -0.3, 0.1])[label][:, None] * np.exp(-(((t - shift - 0.4) / 0.12) ** 2))
    noise = 0.15 * rng.standard_normal((beats, length))
    np.savez(path, signal=(peak + late + noise).astype(np.float32), label=label)


class BeatArchive(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.size = len(self.archive["label"])

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        signal = self.archive["signal"][i]
        signal = (signal - signal.mean()) / signal.std()
        return signal[None], self.archive["label"][i]


class BeatNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        layers, width = [], 1
        for nxt in (16, 32, 48):
            layers += [nn.Conv1d(width, nxt, 7, padding=3), nn.BatchNorm1d(nxt), nn.ReLU(), nn.MaxPool1d(2)]
            width = nxt
        self.features = nn.Sequential(*layers)
        self.classify = nn.Linear(width, classes)

    def forward(self, x):
        return self.classify(self.features(x).mean(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    opts = parser.parse_args()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "beats.npz"
        write_archive(path)
        loader = DataLoader(BeatArchive(path), batch_size=opts.batch_size, shuffle=True)
        model = BeatNet()
        optimizer = torch.optim.Adam(model.parameters(), lr=opts.lr)
        step, since = 0, time.perf_counter()
        for epoch in range(opts.epochs):
            for signal, label in loader:
                loss = nn.functional.cross_entropy(model(signal), label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 25 == 0:
                    now = time.perf_counter()
                    print(
                        f"epoch {epoch} step {step} loss {loss.item():.3f} {(now - since) / 25 * 1000:.1f} ms/step",
                        flush=True,
                    )
                    since = now


if __name__ == "__main__":
    main()
