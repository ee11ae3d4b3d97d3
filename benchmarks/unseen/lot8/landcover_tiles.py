"""Land-cover classification on multispectral tiles packed into one archive."""

import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 6


def build_archive(path, count=480, bands=4, size=28):
    rng = np.random.default_rng(3)
    labels = rng.integers(0, CLASSES, count)
    yy, xx = np.mgrid[0:size, 0:size]
    tiles = np.empty((count, bands, size, size), dtype=np.uint8)
    for i, label in enumerate(labels):
        wave = np.sin(xx * (label + 1) / 5.0) + np.cos(yy * (label + 2) / 7.0)
        for b in range(bands):
            noise = rng.normal(0, 12, (size, size))
            tiles[i, b] = np.clip(120 + 30 * wave + 8 * b + noise, 0, 255)
    np.savez_compressed(path, tiles=tiles, labels=labels)


class TileDataset(Dataset):
    def __init__(self, path, train=True):
        self.path = path
        self.train = train
        with np.load(path) as archive:
            self.count = len(archive["labels"])
            self.mean = archive["tiles"].mean(axis=(0, 2, 3)).astype(np.float32)
        self.archive = None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.archive is None:
            self.archive = np.load(self.path)
        tile = self.archive["tiles"][index].astype(np.float32)
        label = int(self.archive["labels"][index])
        tile = (tile - self.mean[:, None, None]) / 64.0
        if self.train and np.random.rand() < 0.5:
            tile = tile[:, :, ::-1].copy()
        return torch.from_numpy(tile), label


class TileNet(nn.Module):
    def __init__(self, bands=4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(bands, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tiles.npz")
        build_archive(path)
        loader = DataLoader(
            TileDataset(path), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
        )
        model = TileNet()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        criterion = nn.CrossEntropyLoss()
        step = 0
        for epoch in range(6):
            for tiles, labels in loader:
                optimizer.zero_grad()
                loss = criterion(model(tiles), labels)
                loss.backward()
                optimizer.step()
                step += 1
                if step % 30 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
