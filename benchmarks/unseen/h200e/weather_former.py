"""Six-hour forecasts of gridded weather fields with a patch transformer."""

import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FIELDS, LAT, LON, PATCH = 4, 64, 128, 4
DIM, HEADS, DEPTH, BATCH, DAYS = (384, 6, 16, 32, 2000) if device.type == "cuda" else (32, 2, 2, 2, 20)


def archive(days):
    """Smooth random fields carried eastwards by a jet that varies with latitude, and their state later."""
    ky = torch.fft.fftfreq(LAT, device=device)[:, None] * LAT
    kx = torch.fft.rfftfreq(LON, device=device)[None, :] * LON
    amplitude = 1 / (1 + ky**2 + kx**2) ** 0.9
    white = torch.fft.rfft2(torch.randn(days, FIELDS, LAT, LON, device=device))
    now = torch.fft.irfft2(white * amplitude, s=(LAT, LON))
    now = now / now.std()
    jet = 6 * torch.cos(torch.linspace(-1.5, 1.5, LAT, device=device))[:, None]
    drift = torch.exp(-2j * math.pi * kx * jet / LON)
    later = torch.fft.irfft(torch.fft.rfft(now, dim=-1) * drift, n=LON, dim=-1)
    later = 0.95 * later + 0.05 * later.roll(1, dims=1)
    return now, later


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(FIELDS * PATCH**2, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(LAT * LON // PATCH**2, DIM))
        self.layers = nn.Sequential(*[Layer() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        self.read = nn.Linear(DIM, FIELDS * PATCH**2)

    def forward(self, now):
        x = F.pixel_unshuffle(now, PATCH).flatten(2).transpose(1, 2)
        x = self.read(self.norm(self.layers(self.patches(x) + self.place)))
        change = x.transpose(1, 2).unflatten(2, (LAT // PATCH, LON // PATCH))
        return now + F.pixel_shuffle(change, PATCH)


def rate(step, steps, peak=8e-4, warmup=100):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def main(steps):
    torch.manual_seed(9)
    torch.set_float32_matmul_precision("high")
    now, later = archive(DAYS)
    weight = torch.cos(torch.linspace(-1.5, 1.5, LAT, device=device))[:, None]
    model = Forecaster().to(device)
    lr = torch.tensor(rate(0, steps), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.05)
    start = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"].fill_(rate(step, steps))
        days = torch.randint(DAYS, (BATCH,), device=device)
        with torch.autocast(device.type, torch.bfloat16):
            forecast = model(now[days])
        loss = (weight * (forecast.float() - later[days]).square()).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} weighted mse {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / steps:.1f} ms a step")


if __name__ == "__main__":
    main(int(os.environ.get("STEPS", 900)))
