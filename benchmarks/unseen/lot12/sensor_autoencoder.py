"""Denoising autoencoder for vibration sensors."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 512
EPOCHS = 3


class Vibration(Dataset):
    def __init__(self, machines, seconds, seed):
        rng = np.random.default_rng(seed)
        t = np.arange(seconds * 256) / 256.0
        speeds = rng.uniform(5, 40, size=(machines, 1))
        wave = np.sin(2 * np.pi * speeds * t) + 0.4 * np.sin(6 * np.pi * speeds * t)
        self.signal = wave.astype(np.float32)
        self.per_machine = self.signal.shape[1] // WINDOW
        self.noise = 0.3

    def __len__(self):
        return self.signal.shape[0] * self.per_machine

    def __getitem__(self, index):
        machine, window = divmod(index, self.per_machine)
        start = window * WINDOW
        clean = torch.from_numpy(self.signal[machine, start : start + WINDOW])
        return clean + self.noise * torch.randn(WINDOW), clean


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 24, 9, stride=2, padding=4), nn.GELU(), nn.Conv1d(24, 32, 9, stride=2, padding=4), nn.GELU()
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(32, 24, 8, stride=2, padding=3),
            nn.GELU(),
            nn.ConvTranspose1d(24, 1, 8, stride=2, padding=3),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x.unsqueeze(1))).squeeze(1)


def train_epoch(model, optimizer, loader):
    total = 0.0
    for noisy, clean in loader:
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    torch.manual_seed(0)
    dataset = Vibration(machines=30, seconds=128, seed=0)
    loader = DataLoader(
        dataset, batch_size=64, shuffle=True, drop_last=True, num_workers=2, multiprocessing_context="spawn"
    )
    model = AutoEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        loss = train_epoch(model, optimizer, loader)
        print(f"epoch {epoch} loss {loss:.4f}")


if __name__ == "__main__":
    main()
