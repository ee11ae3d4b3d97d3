"""Predict coverage tracks from DNA sequence with a convolution stem and attention over long windows."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
WINDOW = 2048 if CUDA else 256
BATCH = 8 if CUDA else 2
DIM, HEADS, DEPTH = (512, 8, 4) if CUDA else (64, 4, 2)
TRACKS = 32
POOL = 16
STEPS = 350
WORKERS = 4 if CUDA else 0
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


class GenomeWindows(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = np.random.default_rng(info.id if info else 0)
        genome = rng.integers(0, 4, 1_000_000)
        coverage = rng.poisson(2.0, (len(genome) // POOL, TRACKS)).astype(np.float32)
        while True:
            bin0 = int(rng.integers(0, len(coverage) - WINDOW // POOL))
            bases = genome[bin0 * POOL : bin0 * POOL + WINDOW]
            yield torch.from_numpy(bases.copy()), torch.from_numpy(coverage[bin0 : bin0 + WINDOW // POOL].copy())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        with torch.autocast(x.device.type, enabled=False):
            y = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
        return self.proj(y.transpose(1, 2).reshape(b, t, DIM))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TrackModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.bases = nn.Embedding(4, DIM)
        self.stem = nn.Conv1d(DIM, DIM, 9, padding=4)
        self.position = nn.Parameter(torch.randn(WINDOW, DIM) * 0.02)
        self.layers = nn.Sequential(*[Layer() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, TRACKS)

    def forward(self, bases):
        x = F.gelu(self.stem(self.bases(bases).transpose(1, 2))).transpose(1, 2) + self.position
        x = self.norm(self.layers(x))
        b, t, _ = x.shape
        return self.head(x.reshape(b, t // POOL, POOL, DIM).mean(2))


def main():
    torch.manual_seed(0)
    loader = DataLoader(GenomeWindows(), BATCH, num_workers=WORKERS, pin_memory=CUDA)
    model = TrackModel().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    total = torch.zeros((), device=device)
    for step, (bases, coverage) in enumerate(loader, 1):
        bases = bases.to(device, non_blocking=True)
        coverage = coverage.to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            rate = model(bases)
        loss = F.poisson_nll_loss(rate.float(), coverage)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.detach()
        if step % 50 == 0:
            print(f"step {step} loss {total.item() / 50:.4f}", flush=True)
            total.zero_()
        if step in (STEPS, LIMIT_STEPS):
            break


if __name__ == "__main__":
    main()
