"""Classify surface-scan tiles (synthetic) into four defect types."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ScanTiles(Dataset):
    def __init__(self, n_tiles, size=48, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 4, n_tiles)
        self.size = size
        self.base = rng.normal(0.0, 0.3, size=(64, 3, size, size)).astype(np.float32)
        self.pick = rng.integers(0, len(self.base), n_tiles)
        self.centre = rng.integers(8, size - 8, size=(n_tiles, 2))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        tile = self.base[self.pick[i]].copy()
        label = int(self.labels[i])
        y, x = self.centre[i]
        if label == 1:
            tile[:, y - 1 : y + 1, :] += 0.8
        elif label == 2:
            tile[:, :, x - 1 : x + 1] += 0.8
        elif label == 3:
            tile[:, y - 4 : y + 4, x - 4 : x + 4] += 0.8
        if np.random.rand() < 0.5:
            tile = tile[:, :, ::-1]
        return tile, label


def collate(samples):
    tiles = [tile for tile, _ in samples]
    labels = [label for _, label in samples]
    return torch.tensor(tiles), torch.tensor(labels)


class TileNet(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, n_classes)

    def forward(self, x):
        return self.head(self.features(x).amax(dim=(2, 3)))


def main():
    torch.manual_seed(0)
    dataset = ScanTiles(n_tiles=6400)
    loader = DataLoader(
        dataset, batch_size=64, shuffle=True, num_workers=2, collate_fn=collate, persistent_workers=True
    )
    model = TileNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(2):
        correct = seen = 0
        for step, (tiles, labels) in enumerate(loader):
            logits = model(tiles)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            correct += (logits.argmax(1) == labels).sum().item()
            seen += len(labels)
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} acc {correct / seen:.3f}")


if __name__ == "__main__":
    main()
