"""Denoising of simulated electron micrographs with a small residual CNN.

Statistics of weights and gradients go to a JSON-lines file that our dashboard reads.
"""
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
CH = 112 if CUDA else 8
BLOCKS = 3 if CUDA else 1
SIDE = 64 if CUDA else 16
BATCH = 128 if CUDA else 4
N_IMAGES = 8192 if CUDA else 32
STEPS = 600 if CUDA else 4


class Watcher:
    """Keeps histograms of every parameter and its gradient."""

    def __init__(self, model, path, bins=64):
        self.named = list(model.named_parameters())
        self.file = open(path, "w")
        self.bins = bins

    def record(self, step):
        row = {"step": step}
        for name, p in self.named:
            for kind, tensor in (("w", p), ("g", p.grad)):
                values = tensor.detach().float().cpu().numpy().ravel()
                counts, edges = np.histogram(values, bins=self.bins)
                row[f"{kind}/{name}"] = {"counts": counts.tolist(), "low": float(edges[0]), "high": float(edges[-1])}
        self.file.write(json.dumps(row) + "\n")

    def close(self):
        self.file.close()


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1)
        self.b = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(x)))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, CH, 3, padding=1)
        self.body = nn.Sequential(*(Residual(CH) for _ in range(BLOCKS)))
        self.tail = nn.Conv2d(CH, 1, 3, padding=1)
        nn.init.zeros_(self.tail.weight)

    def forward(self, x):
        return x - self.tail(self.body(self.stem(x)))


def micrographs(n):
    """Lattices of bright atoms with random orientation, spacing and a smooth background."""
    g = torch.Generator().manual_seed(5)
    yy, xx = torch.meshgrid(torch.arange(SIDE).float(), torch.arange(SIDE).float(), indexing="ij")
    angle = torch.rand(n, 1, 1, generator=g) * 3.14
    pitch = 5 + 6 * torch.rand(n, 1, 1, generator=g)
    u = (xx * angle.cos() + yy * angle.sin()) / pitch
    v = (yy * angle.cos() - xx * angle.sin()) / pitch
    img = ((2 * torch.pi * u).cos() + (2 * torch.pi * v).cos()).clamp_min(0) / 2
    back = F.interpolate(torch.rand(n, 1, 4, 4, generator=g), size=(SIDE, SIDE), mode="bilinear")[:, 0]
    return (0.7 * img + 0.3 * back)[:, None]


def main():
    torch.manual_seed(0)
    clean_all = micrographs(N_IMAGES).to(device)
    model = Denoiser().to(device, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=CUDA)
    folder = tempfile.mkdtemp()
    watcher = Watcher(model, os.path.join(folder, "stats.jsonl"))
    running = torch.zeros((), device=device)
    start = time.time()
    for step in range(1, STEPS + 1):
        clean = clean_all[torch.randint(0, N_IMAGES, (BATCH,), device=device)]
        dose = 8 + 24 * torch.rand(BATCH, 1, 1, 1, device=device)
        noisy = torch.poisson(clean * dose) / dose
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(noisy.contiguous(memory_format=torch.channels_last))
        loss = F.l1_loss(out.float(), clean)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        watcher.record(step)
        opt.step()
        running += loss.detach()
        if step % 50 == 0 or step == STEPS:
            print(f"step {step} l1 {running.item() / 50:.5f} {(time.time() - start) / step * 1e3:.1f} ms", flush=True)
            running.zero_()
    watcher.close()
    print("statistics in", folder)


if __name__ == "__main__":
    main()
