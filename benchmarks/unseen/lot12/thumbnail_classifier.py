"""Trains the thumbnail classifier from the nightly tar export."""

import io
import os
import tarfile
import tempfile

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

ITEMS = 20000


def export(path):
    digits = load_digits()
    rng = np.random.default_rng(0)
    names, labels = [], []
    with tarfile.open(path, "w") as tar:
        for i in range(ITEMS):
            k = int(rng.integers(len(digits.images)))
            pixels = np.kron(digits.images[k], np.ones((2, 2))).astype(np.uint8)
            info = tarfile.TarInfo(f"thumbs/{i // 1000:03d}/{i:06d}.raw")
            info.size = pixels.size
            tar.addfile(info, io.BytesIO(pixels.tobytes()))
            names.append(info.name)
            labels.append(int(digits.target[k]))
    return names, labels


class Thumbnails(Dataset):
    def __init__(self, path, names, labels):
        self.path = path
        self.names = names
        self.labels = labels
        self.tar = None

    def __len__(self):
        return len(self.names)

    def open(self):
        self.tar = tarfile.open(self.path, "r:")

    def __getitem__(self, index):
        if self.tar is None:
            self.open()
        raw = self.tar.extractfile(self.names[index]).read()
        pixels = np.frombuffer(raw, dtype=np.uint8).reshape(1, 16, 16)
        return torch.from_numpy(pixels.astype(np.float32) / 16.0), self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "thumbs.tar")
        names, labels = export(path)
        loader = DataLoader(
            Thumbnails(path, names, labels), batch_size=128, shuffle=True, num_workers=2, drop_last=True
        )
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        loss_fn = nn.CrossEntropyLoss()
        for epoch in range(1):
            for step, (x, y) in enumerate(loader):
                loss = loss_fn(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % 40 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
