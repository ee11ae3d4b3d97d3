"""Train a small keyword spotter on one-second clips."""

import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 8
RATE = 4000


def make_shards(folder, n_shards=25, per_shard=80):
    rng = np.random.default_rng(0)
    t = np.arange(RATE) / RATE
    paths = []
    for k in range(n_shards):
        labels = rng.integers(0, CLASSES, per_shard)
        tones = 200 + 120 * labels[:, None]
        clips = np.sin(2 * np.pi * tones * t) + 0.3 * rng.standard_normal((per_shard, RATE))
        paths.append(os.path.join(folder, f"part{k:03d}.npz"))
        np.savez_compressed(paths[-1], clips=(clips * 8000).astype(np.int16), labels=labels)
    return paths


class ClipDataset(Dataset):
    def __init__(self, paths):
        self.paths = paths
        self.parts = {}
        self.index = []
        for k, path in enumerate(paths):
            with np.load(path) as part:
                self.index += [(k, j, int(y)) for j, y in enumerate(part["labels"])]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        k, j, label = self.index[i]
        if k not in self.parts:
            self.parts[k] = np.load(self.paths[k])
        clip = self.parts[k]["clips"][j].astype(np.float32) / 32768.0
        clip = np.roll(clip, np.random.randint(-200, 200))
        return torch.from_numpy(clip)[None], label


class Spotter(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 33, stride=4),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 9, stride=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width * 2, 9, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(width * 2, CLASSES),
        )

    def forward(self, x):
        return self.net(x)


def main():
    torch.manual_seed(0)
    paths = make_shards(tempfile.mkdtemp())
    loader = DataLoader(
        ClipDataset(paths), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )
    model = Spotter()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    step, start = 0, time.time()
    for epoch in range(1):
        for clips, labels in loader:
            loss = loss_fn(model(clips), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
