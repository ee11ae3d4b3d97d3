"""Train a network that doubles the resolution of scanned maps."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
CROP = 256 if CUDA else 48
BATCH = 16 if CUDA else 2
WIDTH = 64 if CUDA else 16
BLOCKS = 10 if CUDA else 2
WORKERS = 4 if CUDA else 0
EPOCHS, EPOCH_STEPS = 2, 350
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


class MapCrops(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(5)
        self.count = count
        self.sheet = rng.integers(0, 255, (3, 2048, 2048), dtype=np.uint8)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        y, x = (index * 7919) % (2048 - CROP), (index * 104729) % (2048 - CROP)
        return torch.from_numpy(self.sheet[:, y : y + CROP, x : x + CROP].copy())


class Mish(nn.Module):
    def forward(self, x):
        return x * torch.tanh(torch.log(1 + torch.exp(x)))


class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.act = Mish()

    def forward(self, x):
        return x + self.act(self.conv2(self.act(self.conv1(x))))


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.body = nn.Sequential(*[ResidualBlock() for _ in range(BLOCKS)])
        self.tail = nn.Conv2d(WIDTH, 12, 3, padding=1)

    def forward(self, low):
        return F.pixel_shuffle(self.tail(self.body(self.head(low))), 2)


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        MapCrops(BATCH * EPOCH_STEPS),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        pin_memory=CUDA,
        drop_last=True,
        persistent_workers=WORKERS > 0,
    )
    model = Upscaler().to(device, memory_format=torch.channels_last)
    opt = torch.optim.Adam(model.parameters(), lr=2e-4, fused=True)
    total = torch.zeros((), device=device)
    step = 0
    for epoch in range(EPOCHS):
        for high in loader:
            high = high.to(device, non_blocking=True).float().div_(255)
            low = F.avg_pool2d(high, 2).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device, dtype=torch.bfloat16):
                restored = model(low)
            loss = F.l1_loss(restored.float(), high)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
            step += 1
            if step % 70 == 0:
                print(f"epoch {epoch} step {step} l1 {total.item() / 70:.4f}", flush=True)
                total.zero_()
            if step == LIMIT_STEPS:
                return


if __name__ == "__main__":
    main()
