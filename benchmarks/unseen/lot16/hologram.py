"""Phase-only hologram that focuses digit images on several depth planes."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


@dataclass
class Optics:
    size: int = 256
    pitch: float = 8e-6
    wavelength: float = 532e-9
    depths: tuple = (0.04, 0.06, 0.08, 0.10)


def transfer_functions(optics):
    """Angular spectrum transfer function of each depth, shape (depth, size, size)."""
    f = np.fft.fftfreq(optics.size, d=optics.pitch)
    fx, fy = np.meshgrid(f, f, indexing="ij")
    root = np.sqrt(np.maximum(1 / optics.wavelength**2 - fx**2 - fy**2, 0.0))
    z = np.asarray(optics.depths)[:, None, None]
    limit = 1 / (optics.wavelength * np.sqrt(1 + (2 * z / (optics.size * optics.pitch)) ** 2))
    band = (np.abs(fx) < limit) & (np.abs(fy) < limit)
    return torch.from_numpy(np.exp(2j * np.pi * z * root) * band)


def target_planes(optics, seed):
    digits = load_digits()
    picks = np.random.default_rng(seed).choice(len(digits.images), len(optics.depths), replace=False)
    small = torch.tensor(digits.images[picks] / 16.0, dtype=torch.float32)[:, None]
    side = optics.size // 2
    big = F.interpolate(small, size=(side, side), mode="bilinear", align_corners=False)[:, 0]
    margin = (optics.size - side) // 2
    return F.pad(big, (margin, margin, margin, margin))


class Hologram(nn.Module):
    def __init__(self, optics):
        super().__init__()
        self.phase = nn.Parameter(0.5 * torch.randn(optics.size, optics.size))
        self.gain = nn.Parameter(torch.ones(len(optics.depths)))
        self.register_buffer("transfer", transfer_functions(optics))

    def forward(self):
        field = torch.polar(torch.ones_like(self.phase), self.phase)
        spectrum = torch.fft.fft2(field, norm="ortho")
        planes = torch.fft.ifft2(spectrum * self.transfer, norm="ortho")
        intensity = planes.real**2 + planes.imag**2
        return self.gain[:, None, None].abs() * intensity


def objective(intensity, target):
    amplitude = torch.sqrt(intensity + 1e-6)
    fit = F.mse_loss(amplitude, target.sqrt())
    dx = (amplitude - target.sqrt()).diff(dim=-1).pow(2).mean()
    dy = (amplitude - target.sqrt()).diff(dim=-2).pow(2).mean()
    return fit + 0.2 * (dx + dy)


def psnr(intensity, target):
    return -10 * torch.log10(F.mse_loss(intensity.clamp(0, 1), target))


def optimise(optics, steps):
    hologram = Hologram(optics)
    target = target_planes(optics, seed=5)
    optimizer = torch.optim.Adam([{"params": [hologram.phase], "lr": 3e-2}, {"params": [hologram.gain], "lr": 1e-3}])
    for step in range(steps):
        intensity = hologram()
        loss = objective(intensity, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.5f}, psnr {psnr(intensity.detach(), target).item():.2f} dB")
    return hologram


if __name__ == "__main__":
    torch.manual_seed(1)
    optimise(Optics(), steps=1100)
