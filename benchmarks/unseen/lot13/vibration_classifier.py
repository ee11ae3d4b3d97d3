"""Fault classification of bearing vibration recordings (1-D CNN)."""

import gzip
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

RECORD = 512
N_RECORDS = 1200
CLASSES = 4


def write_archive(path, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(RECORD) / 1000.0
    labels = rng.integers(0, CLASSES, N_RECORDS)
    with gzip.open(path, "wb", compresslevel=6) as f:
        for y in labels:
            base = np.sin(2 * np.pi * (20 + 35 * y) * t + rng.uniform(0, 6))
            sig = base + 0.6 * rng.standard_normal(RECORD)
            f.write((sig * 2000).astype("<i2").tobytes())
    return labels


class VibrationRecords(Dataset):
    def __init__(self, path, labels):
        self.path = path
        self.labels = labels
        self.nbytes = RECORD * 2
        self.handle = None

    def __len__(self):
        return len(self.labels)

    def read_record(self, index):
        if self.handle is None:
            self.handle = gzip.open(self.path, "rb")
        self.handle.seek(index * self.nbytes)
        return self.handle.read(self.nbytes)

    def __getitem__(self, index):
        sig = np.frombuffer(self.read_record(index), dtype="<i2")
        sig = sig.astype(np.float32) / 2000.0
        sig = (sig - sig.mean()) / (sig.std() + 1e-6)
        return torch.from_numpy(sig)[None], int(self.labels[index])


class VibrationNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 16, 15, stride=2, padding=7),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Conv1d(16, 32, 9, stride=2, padding=4),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Conv1d(32, 64, 5, stride=2, padding=2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.head(self.features(x))


def main():
    torch.manual_seed(0)
    path = os.path.join(tempfile.mkdtemp(), "records.bin.gz")
    labels = write_archive(path)
    loader = DataLoader(
        VibrationRecords(path, labels),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        drop_last=True,
        persistent_workers=True,
    )
    model = VibrationNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(4):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
