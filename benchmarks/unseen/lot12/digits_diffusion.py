"""Denoising diffusion model on the scikit-learn digits."""

import argparse
import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Schedule:
    def __init__(self, steps):
        self.steps = steps
        self.betas = torch.linspace(1e-4, 0.04, steps)

    def add_noise(self, x, t):
        for s in range(int(t.max()) + 1):
            noise = torch.randn_like(x)
            stepped = (1 - self.betas[s]).sqrt() * x + self.betas[s].sqrt() * noise
            x = torch.where((t >= s)[:, None, None, None], stepped, x)
        return x


def time_features(t, dim):
    freq = torch.exp(-math.log(1000.0) * torch.arange(dim // 2) / (dim // 2))
    angles = t[:, None] * freq
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Denoiser(nn.Module):
    def __init__(self, channels=32, time_dim=64):
        super().__init__()
        self.time_dim = time_dim
        self.inp = nn.Conv2d(1, channels, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(time_dim, channels), nn.SiLU(), nn.Linear(channels, channels))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(8, channels) for _ in range(3))
        self.out = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, x, t):
        h = self.inp(x)
        emb = self.time(time_features(t, self.time_dim))[:, :, None, None]
        for conv, norm in zip(self.convs, self.norms):
            h = h + conv(F.silu(norm(h) + emb))
        return self.out(F.silu(h))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--noise-steps", type=int, default=400)
    args = p.parse_args()

    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    schedule = Schedule(args.noise_steps)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total, count = 0.0, 0
        for x0 in images[torch.randperm(len(images))].split(args.batch_size):
            t = torch.randint(schedule.steps, (len(x0),))
            noisy = schedule.add_noise(x0, t)
            loss = F.mse_loss(model(noisy, t), x0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count = total + loss.item(), count + 1
        print(f"epoch {epoch} loss {total / count:.4f}")


if __name__ == "__main__":
    main()
