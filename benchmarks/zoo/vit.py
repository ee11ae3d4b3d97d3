"""Train a vision transformer (ViT-S/16, 22M parameters) on 224x224 images augmented in Python.

    python vit.py
    python vit.py --tiny --steps 10        # small images and few layers, for a CPU

The images are made at the start: patterns of waves, a class each. A reading crops, mirrors and brightens one,
by amounts that depend on its index alone.
"""

import argparse
import math
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 100
PATCH = 16


class PatternDataset(Dataset):
    """`length` readings of a pool of images, kept as bytes and an eighth larger than what is cut from them."""

    def __init__(self, size, pool=256, length=25600):
        rng = np.random.default_rng(1)
        full = size + size // 8
        axis = np.linspace(0, 1, full, dtype=np.float32)
        self.size, self.length = size, length
        self.images = np.empty((pool, 3, full, full), dtype=np.uint8)
        waves, phases = rng.normal(0, 12, (CLASSES, 3, 2)), rng.uniform(0, 6, (CLASSES, 3))
        for i in range(pool):
            label = i % CLASSES
            for channel in range(3):
                down, across = waves[label, channel]
                pattern = np.sin(down * axis[:, None] + across * axis + phases[label, channel]) * 60
                noise = rng.standard_normal((full, full), dtype=np.float32) * 25
                self.images[i, channel] = (128 + pattern + noise).clip(0, 255)

    def __len__(self):
        return self.length

    def read(self, index):
        """The cut bytes, how much brighter they become, and the label."""
        rng = random.Random(index)
        image = self.images[index % len(self.images)]
        top, left = (rng.randint(0, image.shape[1] - self.size) for _ in range(2))
        image = image[:, top : top + self.size, left : left + self.size]
        if rng.random() < 0.5:
            image = image[:, :, ::-1]
        return image, rng.uniform(0.7, 1.3), index % len(self.images) % CLASSES

    def __getitem__(self, index):
        image, brighter, label = self.read(index)
        image = np.clip(image.astype(np.float32) / 255 * brighter, 0, 1)
        return torch.from_numpy((image - 0.5) / 0.25), label


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * (C // self.heads) ** -0.5
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, size, dim, heads, layers):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (size // PATCH) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def schedule(steps, warmup=50):
    """Linear warm-up, then half a cosine; by LambdaLR."""
    return lambda at: min(1.0, (at + 1) / warmup) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, at / steps)))


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="small images and few layers, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.size, args.dim, args.heads, args.layers = 224, 384, 6, 12
    if args.tiny:
        args.size, args.dim, args.heads, args.layers, args.batch_size = 48, 32, 2, 2, 8
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader = DataLoader(PatternDataset(args.size), batch_size=args.batch_size, shuffle=True)
    model = ViT(args.size, args.dim, args.heads, args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(1000))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    step, total, start = 0, 0.0, time.perf_counter()
    while step < args.steps:
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
            step += 1
            if step % args.log_every == 0:
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                print(f"step {step} loss {loss.item():.4f} mean {total / step:.4f} {ms:.2f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
