"""Detect the machine state from vibration windows kept in shard files."""

import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 5
PER_SHARD = 96


def write_shards(folder, shards=24, length=512, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(length) / length
    for s in range(shards):
        labels = rng.integers(0, CLASSES, PER_SHARD)
        phase = rng.uniform(0, 6.28, (PER_SHARD, 1))
        signal = np.sin(2 * np.pi * (labels[:, None] * 6 + 8) * t + phase)
        signal = signal + 0.5 * rng.standard_normal(signal.shape)
        np.savez_compressed(
            os.path.join(folder, f"shard{s:03d}.npz"),
            signal=signal.astype(np.float32),
            label=labels,
        )
    return shards


class Windows(Dataset):
    def __init__(self, folder, shards):
        self.files = [os.path.join(folder, f"shard{s:03d}.npz") for s in range(shards)]

    def __len__(self):
        return len(self.files) * PER_SHARD

    def read(self, path):
        with np.load(path) as archive:
            return archive["signal"], archive["label"]

    def __getitem__(self, i):
        shard, row = divmod(i, PER_SHARD)
        signal, label = self.read(self.files[shard])
        x = torch.from_numpy(signal[row]).unsqueeze(0)
        return (x - x.mean()) / x.std(), int(label[row])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 24, 15, stride=2, padding=7),
            nn.ReLU(),
            nn.Conv1d(24, 48, 9, stride=2, padding=4),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(8),
            nn.Flatten(),
        )
        self.head = nn.Linear(48 * 8, CLASSES)

    def forward(self, x):
        return self.head(self.features(x))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        data = Windows(folder, write_shards(folder))
        loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        start, step = time.time(), 0
        for epoch in range(4):
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 30 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.3f} ({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()
