"""Flood mapping: U-Net over four-band satellite tiles, water or land for each pixel."""

import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = int(os.environ.get("STEPS", 700))
TILE, BATCH, BASE, TILES = (128, 32, 48, 1500) if device == "cuda" else (32, 4, 8, 64)


def setup(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.enabled = False


def tiles(n):
    """Smooth terrain; what lies below the water level reflects little in the infrared bands."""
    terrain = torch.randn(n, 1, TILE // 8, TILE // 8, device=device)
    terrain = F.interpolate(terrain, size=(TILE, TILE), mode="bicubic", align_corners=False)
    level = 0.5 * torch.randn(n, 1, 1, 1, device=device)
    water = (terrain < level).float()
    gain = torch.tensor([0.2, 0.3, -0.8, -1.0], device=device).view(1, 4, 1, 1)
    bands = water * gain + 0.3 * terrain + 0.5 * torch.randn(n, 4, TILE, TILE, device=device)
    return bands.contiguous(memory_format=torch.channels_last), water


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, bands=4, base=BASE, depth=4):
        super().__init__()
        widths = [base * 2**i for i in range(depth)]
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip([bands] + widths, widths))
        self.up = nn.ModuleList(double_conv(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1]))
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        kept = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for block in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1))
        return self.head(x)


def soft_dice(logits, target):
    p = torch.sigmoid(logits)
    overlap = (p * target).sum((1, 2, 3))
    return 1 - (2 * overlap / (p.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)).mean()


def train():
    setup(21)
    bands, water = tiles(TILES)
    model = UNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS + 1)
    start = time.perf_counter()
    for step in range(STEPS):
        rows = torch.randint(TILES, (BATCH,), device=device)
        image, mask = bands[rows], water[rows]
        with torch.autocast(device, torch.bfloat16):
            logits = model(image)
        logits = logits.float()
        loss = F.binary_cross_entropy_with_logits(logits, mask) + soft_dice(logits, mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"last {loss.item():.4f}, {1000 * (time.perf_counter() - start) / STEPS:.1f} ms a step")


if __name__ == "__main__":
    train()
