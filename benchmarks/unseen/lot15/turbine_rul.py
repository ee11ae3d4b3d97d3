"""Remaining useful life of turbines from multichannel sensor windows."""

import time

import numpy as np
import torch
from torch import nn

CHANNELS, WINDOW = 14, 64


def simulate_fleet(units=80, seed=2):
    rng = np.random.default_rng(seed)
    windows, targets = [], []
    for _ in range(units):
        life = int(rng.integers(140, 260))
        wear = np.linspace(0, 1, life) ** rng.uniform(1.5, 3.0)
        gain = rng.normal(0, 1, CHANNELS)
        series = wear[:, None] * gain + rng.normal(0, 0.3, (life, CHANNELS))
        for end in range(WINDOW, life, 2):
            windows.append(series[end - WINDOW : end].T)
            targets.append(min(life - end, 120) / 120)
    return np.stack(windows), np.array(targets)


class CausalBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(width, width, 3, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(torch.relu(self.conv(self.pad(x))))


class RulNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.stem = nn.Conv1d(CHANNELS, width, 1)
        self.blocks = nn.Sequential(*[CausalBlock(width, d) for d in (1, 2, 4, 8)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x))[:, :, -1]).squeeze(1)


def train(model, x, y, steps, batch, lr):
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    tick = time.perf_counter()
    for step in range(steps):
        pick = torch.randint(len(x), (batch,))
        loss = nn.functional.mse_loss(model(x[pick]), y[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if (step + 1) % 50 == 0:
            tock = time.perf_counter()
            print(f"step {step + 1} rmse {loss.item() ** 0.5:.4f} ({(tock - tick) * 20:.1f} ms)", flush=True)
            tick = tock


torch.manual_seed(0)
windows, targets = simulate_fleet()
mean, std = windows.mean((0, 2), keepdims=True), windows.std((0, 2), keepdims=True)
windows = (windows - mean) / std
x, y = torch.from_numpy(windows), torch.from_numpy(targets)
model = RulNet().to(x.dtype)
train(model, x, y, steps=500, batch=64, lr=1e-3)
