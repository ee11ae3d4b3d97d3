"""Weld defect classifier: radiographs are stored as compressed raw frames."""

import gzip
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from scipy import ndimage
from torch.utils.data import DataLoader, Dataset

SIDE = 160


def write_frames(folder, count=144):
    rng = np.random.default_rng(5)
    items = []
    for i in range(count):
        label = int(rng.integers(0, 2))
        frame = rng.normal(900, 60, (SIDE, SIDE))
        if label:
            y, x = rng.integers(20, SIDE - 20, 2)
            frame[y - 6 : y + 6, x - 6 : x + 6] += 350
        path = os.path.join(folder, f"frame_{i:04d}.raw.gz")
        with gzip.open(path, "wb", compresslevel=1) as f:
            f.write(frame.astype("<u2").tobytes())
        items.append((path, label))
    return items


class WeldDataset(Dataset):
    def __init__(self, items):
        self.items = items
        self.frames = {}

    def __len__(self):
        return len(self.items)

    def decode(self, path):
        with gzip.open(path, "rb") as f:
            raw = np.frombuffer(f.read(), dtype="<u2").reshape(SIDE, SIDE)
        frame = ndimage.median_filter(raw.astype(np.float32), size=3)
        frame -= ndimage.gaussian_filter(frame, 12)
        frame = ndimage.zoom(frame, 0.25, order=1)
        return (frame / 100.0)[None]

    def __getitem__(self, index):
        path, label = self.items[index]
        if index not in self.frames:
            self.frames[index] = self.decode(path)
        frame = self.frames[index]
        if np.random.rand() < 0.5:
            frame = frame[:, ::-1]
        return torch.from_numpy(frame.copy()), label


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 2),
    )


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dataset = WeldDataset(write_frames(folder))
        loader = DataLoader(dataset, batch_size=12, shuffle=True, num_workers=2)
        model = build_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(14):
            total = 0.0
            for frames, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(frames), labels)
                loss.backward()
                optimizer.step()
                total += loss.item()
            if epoch % 2 == 0:
                print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
