"""Predict the concentration of three compounds from multi-channel spectra."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    def __init__(self, n, channels=16, bins=384, seed=0):
        rng = np.random.default_rng(seed)
        self.grid = np.linspace(0, 1, bins, dtype=np.float32)
        self.centres = rng.uniform(0.1, 0.9, (3, channels)).astype(np.float32)
        self.targets = rng.uniform(0, 1, (n, 3)).astype(np.float32)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        peaks = np.exp(-((self.grid - self.centres[..., None]) ** 2) / 0.002)
        clean = np.einsum("k,kcb->cb", self.targets[i], peaks)
        noise = np.random.standard_normal(clean.shape).astype(np.float32)
        return clean + 0.05 * noise, self.targets[i]


def collate(samples):
    spectra = [list(s) for s, _ in samples]
    targets = [t for _, t in samples]
    return torch.tensor(spectra), torch.tensor(np.stack(targets))


class Net(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, 32, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv1d(32, 48, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(48, 64, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(256, 3)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Spectra(3200),
        batch_size=32,
        shuffle=True,
        num_workers=2,
        collate_fn=collate,
        persistent_workers=True,
    )
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, start = 0, time.time()
    for epoch in range(3):
        for spectra, targets in loader:
            loss = nn.functional.mse_loss(model(spectra), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} mse {loss.item():.4f} ({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()
