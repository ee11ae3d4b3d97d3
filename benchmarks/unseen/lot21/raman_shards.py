"""Classify mineral species from Raman spectra (synthetic stand-in for our lab export).

The export comes as compressed shards, one .npz per measuring day.
"""
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
N_SHARDS = 16 if CUDA else 2
PER_SHARD = 384 if CUDA else 16
POINTS = 1024 if CUDA else 128
WIDTH = 192 if CUDA else 8
BATCH = 64 if CUDA else 8
WORKERS = 12 if CUDA else 0
EPOCHS = 6 if CUDA else 1
N_MINERALS = 24


def export_day(path, peaks, rng):
    """One day of measurements: Lorentz peaks on a fluorescence background."""
    axis = np.linspace(0, 1, POINTS, dtype=np.float32)
    label = rng.integers(0, N_MINERALS, PER_SHARD)
    spectra = np.zeros((PER_SHARD, POINTS), dtype=np.float32)
    for k in range(peaks.shape[1]):
        centre = peaks[label, k, 0:1] + rng.normal(0, 0.002, (PER_SHARD, 1))
        width = 0.004 + 0.01 * peaks[label, k, 1:2]
        spectra += peaks[label, k, 2:3] / (1 + ((axis - centre) / width) ** 2)
    spectra += rng.uniform(0.2, 1.0, (PER_SHARD, 1)) * np.exp(-2 * axis)
    spectra += rng.normal(0, 0.05, spectra.shape)
    np.savez_compressed(path, spectra=spectra.astype(np.float32), label=label)


class RamanDays(Dataset):
    def __init__(self, folder, augment=True):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".npz"))
        self.augment = augment
        self.index = [(f, row) for f in self.files for row in range(PER_SHARD)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        path, row = self.index[i]
        day = np.load(path)
        x = day["spectra"][row]
        y = int(day["label"][row])
        x = x - x.min()
        x = x / (x.max() + 1e-6)
        if self.augment:
            x = np.roll(x, np.random.randint(-4, 5))
        return torch.from_numpy(x.astype(np.float32)).unsqueeze(0), y


class Block(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, 9, stride=stride, padding=4, bias=False)
        self.norm = nn.BatchNorm1d(c_out)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


def make_model():
    w = WIDTH
    return nn.Sequential(
        Block(1, w, 2), Block(w, w, 1), Block(w, 2 * w, 2), Block(2 * w, 2 * w, 1),
        Block(2 * w, 4 * w, 2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4 * w, N_MINERALS),
    )


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    peaks = rng.uniform(0, 1, (N_MINERALS, 7, 3)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for d in range(N_SHARDS):
            export_day(os.path.join(folder, f"day{d:03d}.npz"), peaks, rng)
        loader = DataLoader(RamanDays(folder), batch_size=BATCH, shuffle=True, drop_last=True,
                            num_workers=WORKERS, pin_memory=CUDA, persistent_workers=WORKERS > 0)
        model = make_model().to(device)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=CUDA)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=EPOCHS * len(loader))
        for epoch in range(EPOCHS):
            start = time.time()
            total = torch.zeros((), device=device)
            right = torch.zeros((), device=device)
            for x, y in loader:
                x = x.to(device, non_blocking=True)
                y = y.to(device, non_blocking=True)
                with torch.autocast(device, dtype=torch.bfloat16):
                    logits = model(x)
                    loss = F.cross_entropy(logits.float(), y)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                sched.step()
                total += loss.detach()
                right += (logits.argmax(1) == y).sum()
            n = len(loader)
            print(f"epoch {epoch} loss {total.item() / n:.4f} "
                  f"acc {right.item() / (n * BATCH):.3f} time {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
