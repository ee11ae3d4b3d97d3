"""Crop type from a season of satellite reflectances: a small attention pooling net over the acquisitions."""

import argparse
import contextlib
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DATES, BANDS, CROPS = 20, 10, 9


def season(n, seed):
    rng = np.random.default_rng(seed)
    crop = rng.integers(0, CROPS, n)
    t = np.linspace(0, 1, DATES)
    peak = 0.25 + 0.06 * crop + rng.normal(0, 0.03, n)
    width = 0.10 + 0.01 * (crop % 3)
    green = np.exp(-(((t[None] - peak[:, None]) / width[:, None]) ** 2))
    tilt = np.random.default_rng(99).normal(0, 1, (CROPS, BANDS))
    x = green[..., None] * (1 + 0.3 * tilt[crop][:, None, :]) + rng.normal(0, 0.25, (n, DATES, BANDS))
    return torch.tensor(x, dtype=torch.float32), torch.from_numpy(crop)


class PixelSet(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.lift = nn.Linear(BANDS, dim)
        self.day = nn.Parameter(torch.randn(DATES, dim) * 0.02)
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.score = nn.Linear(dim, heads)
        self.head = nn.Linear(heads * dim, CROPS)

    def forward(self, x):
        h = self.lift(x) + self.day
        h = h + self.mlp(self.norm(h))
        w = self.score(h).softmax(dim=1)
        pooled = (w.unsqueeze(-1) * h.unsqueeze(2)).sum(dim=1)
        return self.head(pooled.flatten(1))


class Fitter:
    PRECISION = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}

    def __init__(self, model, args):
        self.model = model
        self.dtype = self.PRECISION[args.precision]
        self.opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=self.dtype is torch.float16)
        self.loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)

    def autocast(self):
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=self.dtype)

    def step(self, x, y):
        with self.autocast():
            loss = self.loss_fn(self.model(x), y)
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        with self.autocast():
            hit = (self.model(x).argmax(-1) == y).float().mean()
        self.model.train()
        return hit.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--precision", choices=list(Fitter.PRECISION), default="fp16")
    args = p.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(*season(6400, 1)), batch_size=args.batch, shuffle=True, drop_last=True)
    test = season(512, 2)
    fitter = Fitter(PixelSet(), args)
    seen, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        losses = [fitter.step(x, y) for x, y in loader]
        seen += len(losses)
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.4f}, test {fitter.evaluate(*test):.3f}")
    spent = time.perf_counter() - t0
    print(f"{seen} steps, {spent:.1f} s, {1e3 * spent / seen:.2f} ms a step")


if __name__ == "__main__":
    main()
