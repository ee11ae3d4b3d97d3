"""Fault detection on vibration windows of pumps, one archive a pump."""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_PUMPS, N_WINDOWS, LENGTH = 12, 400, 128


def write_archives(folder, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(LENGTH) / LENGTH
    for pump in range(N_PUMPS):
        label = rng.integers(0, 4, N_WINDOWS)
        freq = 5 + 6 * label[:, None, None] + rng.normal(0, 0.5, (N_WINDOWS, 3, 1))
        signal = np.sin(2 * np.pi * freq * t) + rng.normal(0, 1.0, (N_WINDOWS, 3, LENGTH))
        np.savez_compressed(folder / f"pump_{pump:02d}.npz", signal=signal.astype(np.float32), label=label)


class PumpWindows(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("pump_*.npz"))
        self.index = [(p, w) for p in range(len(self.paths)) for w in range(N_WINDOWS)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        pump, window = self.index[i]
        archive = np.load(self.paths[pump])
        signal = archive["signal"][window]
        signal = (signal - signal.mean(1, keepdims=True)) / (signal.std(1, keepdims=True) + 1e-6)
        return torch.from_numpy(signal), int(archive["label"][window])


class FaultNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, width, 7, padding=3),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, padding=2, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 4),
        )

    def forward(self, x):
        return self.net(x)


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        write_archives(Path(folder))
        loader = DataLoader(PumpWindows(folder), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
        model = FaultNet()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(2):
            total, hits, seen = 0.0, 0, 0
            for step, (x, y) in enumerate(loader):
                logits = model(x)
                loss = F.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(y)
                hits += (logits.argmax(1) == y).sum().item()
                seen += len(y)
                if step % 25 == 24:
                    print(
                        f"epoch {epoch} step {step + 1} loss {total / seen:.4f} accuracy {hits / seen:.3f}", flush=True
                    )


if __name__ == "__main__":
    main()
