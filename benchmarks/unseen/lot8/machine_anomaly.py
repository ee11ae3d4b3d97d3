"""Variational autoencoder over vibration windows from rotating machines."""

import logging

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("anomaly")
WINDOW = 256


def vibration_windows(count=2700, seed=4):
    rng = np.random.default_rng(seed)
    t = np.arange(WINDOW) / 2000.0
    base = rng.uniform(20, 90, (count, 1))
    signal = np.sin(2 * np.pi * base * t + rng.uniform(0, 6, (count, 1)))
    signal += 0.4 * np.sin(2 * np.pi * 3 * base * t)
    signal += rng.normal(0, 0.1, signal.shape)
    return torch.tensor(signal, dtype=torch.float32)


class VibrationVAE(nn.Module):
    def __init__(self, latent=12, width=384):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WINDOW, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.mean = nn.Linear(width, latent)
        self.logvar = nn.Linear(width, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, WINDOW)
        )

    def forward(self, x):
        h = self.encoder(x)
        mean, logvar = self.mean(h), self.logvar(h).clamp(-8, 8)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        log.debug(f"latent mean {mean} logvar {logvar} sample {z}")
        return self.decoder(z), mean, logvar


def elbo(x, output, mean, logvar, beta):
    recon = nn.functional.mse_loss(output, x, reduction="none").sum(1)
    kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(1)
    log.debug(f"recon {recon} kl {kl}")
    return (recon + beta * kl).mean()


def train_epoch(model, loader, optimizer, beta):
    total = 0.0
    for (x,) in loader:
        optimizer.zero_grad()
        output, mean, logvar = model(x)
        loss = elbo(x, output, mean, logvar, beta)
        loss.backward()
        log.debug(f"grads {[p.grad for p in model.parameters()]} moments {optimizer.state_dict()}")
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(vibration_windows()), batch_size=128, shuffle=True, drop_last=True)
    model = VibrationVAE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(14):
        loss = train_epoch(model, loader, optimizer, beta=min(1.0, epoch / 8))
        log.info("epoch %d loss %.3f", epoch, loss)


if __name__ == "__main__":
    main()
