# planted: none (healthy) (large by activations at full resolution)
# dominates at the peak: activations, 113 of 130 MB at `return x + F.silu(...)`
# held by: -
# mend: none needed (checkpointing would trade time)
# measured: CPU: peak 130 MB, flat 3.5 after every step
# on a GPU: about 16 GB (not run)
"""Cloud masks on multispectral tiles at full resolution, dilated convolutions, no downsampling."""
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

USE_CUDA = torch.cuda.is_available()
device = torch.device("cuda" if USE_CUDA else "cpu")
SIDE, BATCH, WIDTH, DEPTH = (512, 8, 48, 10) if USE_CUDA else (128, 6, 16, 6)
STEPS = int(os.environ.get("STEPS", 250 if USE_CUDA else 150))
BANDS = 4


def scene(n, generator):
    coarse = torch.randn(n, 1, SIDE // 16, SIDE // 16, generator=generator)
    height = F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    cloud = (height > 0.4).float()
    ground = 0.3 * torch.rand(n, BANDS, 1, 1, generator=generator).expand(-1, -1, SIDE, SIDE)
    noise = 0.15 * torch.randn(n, BANDS, SIDE, SIDE, generator=generator)
    return ground + 0.5 * cloud * torch.sigmoid(height) + noise, cloud


class Dilated(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x):
        return x + F.silu(self.norm(self.conv(x)))


class CloudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(BANDS, WIDTH, 3, padding=1)
        self.blocks = nn.Sequential(*(Dilated(WIDTH, 2 ** (i % 4)) for i in range(DEPTH)))
        self.head = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


def iou(logits, truth):
    found = logits > 0
    truth = truth > 0.5
    return ((found & truth).sum() / (found | truth).sum().clamp(min=1)).item()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(3)
    model = CloudNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    val_tiles, val_masks = scene(4, generator)
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        tiles, masks = scene(BATCH, generator)
        loss = F.binary_cross_entropy_with_logits(model(tiles.to(device)), masks.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                score = iou(model(val_tiles.to(device)), val_masks.to(device))
            model.train()
            print(f"step {step} loss {loss.item():.4f} val IoU {score:.3f}", flush=True)
    print(f"{(time.perf_counter() - begin) / STEPS * 1e3:.0f} ms a step")


if __name__ == "__main__":
    main()
