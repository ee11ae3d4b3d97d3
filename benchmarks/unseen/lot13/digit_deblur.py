"""Restores digit scans that were degraded by an out-of-focus camera."""

import numpy as np
import torch
import torch.nn as nn
from scipy import ndimage, signal
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


def defocus(image, sigma, radius=10):
    axis = np.arange(-radius, radius + 1)
    yy, xx = np.meshgrid(axis, axis, indexing="ij")
    psf = np.exp(-(yy**2 + xx**2) / (2 * sigma**2))
    psf /= psf.sum()
    return signal.convolve2d(image, psf, mode="same", boundary="symm")


class BlurredDigits(Dataset):
    def __init__(self, size=40):
        images = load_digits().images / 16.0
        self.images = [ndimage.zoom(im, size / 8, order=1).astype(np.float32) for im in images]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        rng = np.random.default_rng(torch.randint(2**31, ()).item())
        clean = self.images[i]
        if rng.random() < 0.5:
            clean = np.roll(clean, rng.integers(-4, 5), axis=1)
        blurred = defocus(clean, sigma=rng.uniform(1.0, 2.5))
        blurred = blurred + rng.normal(0, 0.02, blurred.shape)
        return (torch.from_numpy(blurred.astype(np.float32))[None], torch.from_numpy(np.ascontiguousarray(clean))[None])


class Restorer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width * 2, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width * 2, 4, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, x):
        return x + self.net(x)


def psnr(mse):
    return -10.0 * np.log10(mse)


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        BlurredDigits(), batch_size=24, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True
    )
    model = Restorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(3):
        for step, (blurred, clean) in enumerate(loader):
            restored = model(blurred)
            loss = nn.functional.mse_loss(restored, clean)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} psnr {psnr(loss.item()):.2f} dB", flush=True)


if __name__ == "__main__":
    main()
