"""Fit a guitar amplifier: a waveshaper followed by a learned cabinet response."""

import math

import torch
import torch.nn.functional as F
from torch import nn

RATE = 24_000
TAPS = 2048
SEGMENT = 8_192


def pluck(n, generator):
    """A decaying chord of a few random notes."""
    t = torch.arange(n) / RATE
    out = torch.zeros(n)
    for _ in range(4):
        f0 = 82.4 * 2 ** (torch.randint(0, 36, (1,), generator=generator).item() / 12)
        decay = 2 + 4 * torch.rand(1, generator=generator).item()
        for k in range(1, 6):
            out += torch.sin(2 * math.pi * f0 * k * t) * torch.exp(-decay * k * t) / k
    return out / out.abs().max()


def reference_response(generator):
    t = torch.arange(TAPS) / RATE
    ir = torch.randn(TAPS, generator=generator) * torch.exp(-45 * t)
    ir[0] += 2.0
    return ir / ir.norm()


def causal_filter(x, ir):
    """x (batch, time) through the impulse response ir (taps,)."""
    padded = F.pad(x.unsqueeze(1), (ir.numel() - 1, 0))
    return F.conv1d(padded, ir.flip(0).view(1, 1, -1)).squeeze(1)


class Amp(nn.Module):
    def __init__(self, shaper=16):
        super().__init__()
        self.drive = nn.Linear(1, shaper)
        self.mix = nn.Linear(shaper, 1)
        self.ir = nn.Parameter(torch.zeros(TAPS))
        with torch.no_grad():
            self.ir[0] = 1.0

    def forward(self, x):
        shaped = self.mix(torch.tanh(self.drive(x.unsqueeze(-1)))).squeeze(-1)
        return causal_filter(shaped, self.ir)


def spectral_loss(y, target):
    loss = F.mse_loss(y, target)
    for size in (256, 1024):
        window = torch.hann_window(size)
        a = torch.stft(y, size, size // 2, window=window, return_complex=True).abs()
        b = torch.stft(target, size, size // 2, window=window, return_complex=True).abs()
        loss = loss + 0.1 * F.l1_loss(a, b)
    return loss


def segments(clips, batch, generator):
    dry, wet = clips
    while True:
        which = torch.randint(dry.shape[0], (batch,), generator=generator)
        at = torch.randint(dry.shape[1] - SEGMENT, (batch,), generator=generator)
        cols = at[:, None] + torch.arange(SEGMENT)
        yield dry[which[:, None], cols], wet[which[:, None], cols]


def main(steps=400, batch=3):
    g = torch.Generator().manual_seed(7)
    torch.manual_seed(7)
    dry = torch.stack([pluck(2 * RATE, g) for _ in range(12)])
    wet = causal_filter(torch.tanh(3 * dry) + 0.1 * dry**2, reference_response(g))
    amp = Amp()
    optimizer = torch.optim.Adam(amp.parameters(), lr=1e-3)
    for step, (x, y) in zip(range(steps), segments((dry, wet), batch, g)):
        loss = spectral_loss(amp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 60 == 0:
            print(f"{step:4d}  {loss.item():.5f}")


main()
