"""Train a U-Net that labels land cover in satellite tiles."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
TILE = 256 if CUDA else 32
BATCH = 16 if CUDA else 2
BASE = 64 if CUDA else 8
WORKERS = 4 if CUDA else 0
CLASSES = 9
EPOCHS, EPOCH_STEPS = 2, 350
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


class SatelliteTiles(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(10)
        self.count = count
        self.scene = rng.integers(0, 255, (3, 2048, 2048), dtype=np.uint8)
        coarse = rng.integers(0, CLASSES, (64, 64), dtype=np.uint8)
        self.cover = coarse.repeat(32, 0).repeat(32, 1)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        y, x = (index * 7919) % (2048 - TILE), (index * 104729) % (2048 - TILE)
        tile = self.scene[:, y : y + TILE, x : x + TILE].copy()
        return torch.from_numpy(tile), torch.from_numpy(self.cover[y : y + TILE, x : x + TILE].copy())


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [BASE, BASE * 2, BASE * 4, BASE * 8]
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip([3] + widths, widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(double_conv(2 * a, a) for a in widths[:-1])
        self.out = nn.Conv2d(BASE, CLASSES, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for i in reversed(range(len(self.up))):
            x = self.merge[i](torch.cat([self.up[i](x), skips[i]], 1))
        return self.out(x)


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        SatelliteTiles(BATCH * EPOCH_STEPS),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        pin_memory=CUDA,
        drop_last=True,
        persistent_workers=WORKERS > 0,
    )
    model = UNet().to(device, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    total = torch.zeros((), device=device)
    step = 0
    for epoch in range(EPOCHS):
        for tiles, cover in loader:
            tiles = tiles.to(device, non_blocking=True).to(memory_format=torch.channels_last).float().div_(255)
            cover = cover.to(device, non_blocking=True).long()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(tiles), cover)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
            step += 1
            if step % 70 == 0:
                print(f"epoch {epoch} step {step} loss {total.item() / 70:.4f}", flush=True)
                total.zero_()
            if step == LIMIT_STEPS:
                return


if __name__ == "__main__":
    main()
