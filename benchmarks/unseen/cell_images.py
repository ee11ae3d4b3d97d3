"""Small CNN on microscope tiles which are kept as one .npz file a tile."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", "80"))


def write_tiles(root, count=256):
    rng = np.random.default_rng(0)
    yy, xx = np.mgrid[0:160, 0:160]
    for i in range(count):
        label = i % 4
        field = np.sin(xx / (4 + label)) + np.cos(yy / (6 + label))
        tile = (field * 40 + 128)[..., None] + rng.normal(0, 6, (160, 160, 3))
        np.savez_compressed(root / f"tile_{i:05d}_{label}.npz", tile=tile.astype(np.uint8))


class TileDataset(Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("tile_*.npz"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        tile = np.load(path)["tile"][::4, ::4].copy()
        image = torch.from_numpy(tile).permute(2, 0, 1).float() / 255.0
        return image, int(path.stem.rsplit("_", 1)[1])


class TileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.fc = nn.Linear(32, 4)

    def forward(self, x):
        return self.fc(self.features(x))


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    root = Path(tempfile.mkdtemp(prefix="tiles_"))
    try:
        write_tiles(root)
        loader = DataLoader(TileDataset(root), batch_size=32, shuffle=True, drop_last=True)
        net = TileNet()
        optim = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
        for step, (image, label) in enumerate(endless(loader)):
            if step == STEPS:
                break
            loss = nn.functional.cross_entropy(net(image), label)
            optim.zero_grad()
            loss.backward()
            optim.step()
            if step % 20 == 0:
                print(f"{step:5d} {loss.item():.4f}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
