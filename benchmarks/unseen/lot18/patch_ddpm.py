"""Denoising diffusion on small greyscale patches cut from a drawn picture."""

import math
import time

import numpy as np
import torch
from sklearn.feature_extraction.image import extract_patches_2d
from torch import nn

T = 200


def patches(count=20000, side=12, seed=0):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:400, 0:400] / 400.0
    picture = np.zeros((400, 400))
    for _ in range(60):
        cx, cy, r = rng.random(3) * (1, 1, 0.2)
        picture += rng.normal() * (np.hypot(xx - cx, yy - cy) < r)
    picture += 0.5 * np.sin(40 * np.hypot(xx - 0.5, yy - 0.5) + 6 * np.arctan2(yy - 0.5, xx - 0.5))
    cut = extract_patches_2d(picture, (side, side), max_patches=count, random_state=seed)
    cut = cut - cut.mean()
    return torch.tensor(cut / cut.std(), dtype=torch.float32).flatten(1)


class Schedule:
    def __init__(self, steps):
        beta = torch.linspace(1e-4, 0.04, steps)
        keep = (1 - beta).cumprod(0)
        self.signal, self.noise = keep.sqrt(), (1 - keep).sqrt()

    def corrupt(self, x, t, eps):
        return self.signal[t, None] * x + self.noise[t, None] * eps


def time_table(steps, dim):
    freq = torch.exp(-math.log(1e4) * torch.arange(dim // 2) / (dim // 2))
    angle = torch.arange(steps)[:, None] * freq
    return torch.cat([angle.sin(), angle.cos()], 1)


class Residual(nn.Module):
    def __init__(self, dim, time_dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.shift = nn.Linear(time_dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x, emb):
        return x + self.down(nn.functional.silu(self.up(self.norm(x)) + self.shift(emb)))


class Denoiser(nn.Module):
    def __init__(self, pixels, dim=160, time_dim=32, depth=3):
        super().__init__()
        self.register_buffer("table", time_table(T, time_dim))
        self.into = nn.Linear(pixels, dim)
        self.blocks = nn.ModuleList([Residual(dim, time_dim) for _ in range(depth)])
        self.out = nn.Linear(dim, pixels)

    def forward(self, x, t):
        emb = self.table[t]
        h = self.into(x)
        for block in self.blocks:
            h = block(h, emb)
        return self.out(h)


def update_average(average, model, decay=0.995):
    with torch.no_grad():
        torch._foreach_lerp_(list(average.values()), list(model.parameters()), 1 - decay)


def train(steps=600, batch=384, every=100):
    torch.manual_seed(0)
    data, schedule = patches(), Schedule(T)
    model = Denoiser(data.size(1))
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    running, start = 0.0, time.perf_counter()
    for step in range(1, steps + 1):
        x = data[torch.randint(len(data), (batch,))]
        t = torch.randint(T, (batch,))
        eps = torch.randn_like(x)
        loss = nn.functional.mse_loss(model(schedule.corrupt(x, t, eps), t), eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_average(average, model)
        running += loss.item()
        if step % every == 0:
            print(f"step {step} mse {running / every:.4f}", flush=True)
            running = 0.0
    print(f"{1000 * (time.perf_counter() - start) / steps:.2f} ms/step")


if __name__ == "__main__":
    train()
