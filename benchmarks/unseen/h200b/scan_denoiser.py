"""Residual denoiser for document scans, trained on random crops of clean pages."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.graph import save_on_cpu
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
BATCH = 16 if CUDA else 2
CROP = 128 if CUDA else 32
WIDTH = 64 if CUDA else 8
DEPTH = 6
EPOCHS = 2
STEPS_PER_EPOCH = 200
WORKERS = 8 if CUDA else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")


class PageCrops(Dataset):
    def __init__(self, pages=24, side=512, length=BATCH * STEPS_PER_EPOCH):
        rng = np.random.default_rng(3)
        strokes = rng.random((pages, side // 8, side // 8), dtype=np.float32) > 0.7
        self.pages = np.kron(strokes, np.ones((1, 8, 8), dtype=bool)).astype(np.float32)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        page = self.pages[i % len(self.pages)]
        y = torch.randint(0, page.shape[0] - CROP, ()).item()
        x = torch.randint(0, page.shape[1] - CROP, ()).item()
        return torch.from_numpy(page[None, y : y + CROP, x : x + CROP].copy())


class Denoiser(nn.Module):
    def __init__(self, width=WIDTH, depth=DEPTH):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.Conv2d(width, 1, 3, padding=1))
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return x - self.body(x)


def train_step(model, optimizer, clean):
    noisy = clean + 0.2 * torch.randn_like(clean)
    with save_on_cpu(pin_memory=True):
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(noisy)
        loss = F.mse_loss(out.float(), clean)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        PageCrops(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=CUDA,
        persistent_workers=True,
        prefetch_factor=4,
    )
    model = Denoiser().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=CUDA)
    step, began = 0, time.time()
    for epoch in range(EPOCHS):
        for clean in loader:
            clean = clean.to(device, non_blocking=True)
            loss = train_step(model, optimizer, clean)
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {time.time() - began:.1f}s", flush=True)
            if LIMIT and step >= LIMIT:
                print("loss", loss.item())
                return


if __name__ == "__main__":
    main()
