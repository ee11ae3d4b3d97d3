"""Denoising autoencoder for heart beats (simulated ECG, one lead, 256 samples a beat)."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WAVES = {"P": (0.25, 0.15, 0.025), "Q": (0.42, -0.12, 0.010), "R": (0.45, 1.0, 0.012),
         "S": (0.48, -0.25, 0.011), "T": (0.68, 0.30, 0.045)}


class Beats(Dataset):
    """Clean beats are sums of five waves; a third are ectopic: no P, a wide QRS and an inverted T."""

    def __init__(self, count=4000, samples=256, seed=0):
        rng = np.random.default_rng(seed)
        t = np.linspace(0, 1, samples)
        clean = np.zeros((count, samples))
        ectopic = rng.random(count) < 0.33
        for name, (at, height, width) in WAVES.items():
            centre = at + rng.normal(0, 0.01, (count, 1))
            size = height * rng.lognormal(0, 0.15, (count, 1))
            spread = width * rng.lognormal(0, 0.1, (count, 1))
            if name == "P":
                size[ectopic] = 0
            elif name == "T":
                size[ectopic] *= -1
            else:
                spread[ectopic] *= 2.5
            clean += size * np.exp(-0.5 * ((t - centre) / spread) ** 2)
        drift = rng.normal(0, 0.2, (count, 1)) * np.sin(2 * np.pi * (t * rng.uniform(0.2, 0.8, (count, 1))))
        mains = rng.uniform(0, 0.1, (count, 1)) * np.sin(2 * np.pi * 50 * t + rng.uniform(0, 6, (count, 1)))
        self.clean = torch.from_numpy(clean).float().unsqueeze(1)
        self.noisy = self.clean + torch.from_numpy(drift + mains).float().unsqueeze(1)

    def __len__(self):
        return len(self.clean)

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows)
        return self.noisy[rows], self.clean[rows]


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.down1 = nn.Conv1d(1, width, 15, stride=2, padding=7)
        self.down2 = nn.Conv1d(width, 2 * width, 9, stride=2, padding=4)
        self.down3 = nn.Conv1d(2 * width, 4 * width, 9, stride=2, padding=4)
        self.middle = nn.Conv1d(4 * width, 4 * width, 5, padding=2)
        self.up3 = nn.ConvTranspose1d(4 * width, 2 * width, 8, stride=2, padding=3)
        self.up2 = nn.ConvTranspose1d(2 * width, width, 8, stride=2, padding=3)
        self.up1 = nn.ConvTranspose1d(width, 1, 8, stride=2, padding=3)

    def forward(self, x):
        a = torch.relu(self.down1(x))
        b = torch.relu(self.down2(a))
        c = torch.relu(self.down3(b))
        c = torch.relu(self.middle(c)) + c
        b = torch.relu(self.up3(c)) + b
        a = torch.relu(self.up2(b)) + a
        return self.up1(a)


def signal_to_noise(clean, estimate):
    power = clean.square().sum((1, 2))
    return 10 * torch.log10(power / (clean - estimate).square().sum((1, 2)).clamp(min=1e-9)).mean()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    values = [signal_to_noise(clean, model(noisy)) for noisy, clean in loader]
    model.train()
    return torch.stack(values).mean().item()


def main():
    torch.manual_seed(0)
    steps = int(os.environ.get("STEPS", 900))
    train = DataLoader(Beats(), batch_size=48, shuffle=True, drop_last=True, collate_fn=lambda batch: batch)
    test = DataLoader(Beats(400, seed=1), batch_size=100, collate_fn=lambda batch: batch)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"before training {evaluate(model, test):.2f} dB")
    step, begin = 0, time.time()
    while step < steps:
        for noisy, clean in train:
            noisy = noisy + 0.05 * torch.randn_like(noisy)
            loss = nn.functional.mse_loss(model(noisy), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.5f}")
            if step == steps:
                break
    took = (time.time() - begin) / steps * 1e3
    print(f"after {steps} steps {evaluate(model, test):.2f} dB")
    print(f"{took:.2f} ms per step")


if __name__ == "__main__":
    main()
