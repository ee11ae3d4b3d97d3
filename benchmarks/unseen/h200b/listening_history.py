"""Two-tower retrieval model on a log of (listener, track) plays."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
PLAYS = 20_000_000 if CUDA else 20_000
LISTENERS = 200_000 if CUDA else 500
TRACKS = 100_000 if CUDA else 300
BATCH = 16384 if CUDA else 64
HIDDEN = 2048 if CUDA else 32
STEPS_PER_EPOCH = 60 if CUDA else 3
EPOCHS = 16
WORKERS = 6 if CUDA else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.set_float32_matmul_precision("high")


class Plays(Dataset):
    def __init__(self):
        rng = np.random.default_rng(1)
        self.listener = rng.integers(0, LISTENERS, PLAYS, dtype=np.int32)
        self.track = rng.integers(0, TRACKS, PLAYS, dtype=np.int32)
        self.hour = rng.integers(0, 24, PLAYS, dtype=np.int8)

    def __len__(self):
        return PLAYS

    def __getitem__(self, rows):
        rows = np.asarray(rows)
        listener, track, hour = self.listener[rows], self.track[rows], self.hour[rows]
        return torch.from_numpy(listener), torch.from_numpy(track), torch.from_numpy(hour.astype(np.int32))


def tower(inputs):
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 256)
    )


class TwoTower(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.listeners = nn.Embedding(LISTENERS, dim)
        self.tracks = nn.Embedding(TRACKS, dim)
        self.hours = nn.Embedding(24, dim)
        self.left, self.right = tower(2 * dim), tower(dim)

    def forward(self, listener, track, hour):
        left = self.left(torch.cat([self.listeners(listener), self.hours(hour)], 1))
        right = self.right(self.tracks(track))
        return F.normalize(left, dim=1), F.normalize(right, dim=1)


def make_loader():
    plays = Plays()
    order = RandomSampler(plays)
    return DataLoader(
        plays,
        sampler=BatchSampler(order, BATCH, drop_last=True),
        batch_size=None,
        num_workers=WORKERS,
        pin_memory=CUDA,
        persistent_workers=True,
        prefetch_factor=4,
    )


def main():
    torch.manual_seed(0)
    loader = make_loader()
    model = TwoTower().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=CUDA)
    target = torch.arange(BATCH, device=device)
    done, began = 0, time.time()
    for epoch in range(EPOCHS):
        total = torch.zeros((), device=device)
        for step, (listener, track, hour) in enumerate(loader, 1):
            listener = listener.to(device, non_blocking=True)
            track = track.to(device, non_blocking=True)
            hour = hour.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                left, right = model(listener, track, hour)
                scores = 20.0 * (left.bfloat16() @ right.bfloat16().t())
            loss = F.cross_entropy(scores, target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            done += 1
            if LIMIT and done >= LIMIT:
                print("loss", loss.item())
                return
            if step == STEPS_PER_EPOCH:
                break
        print(f"epoch {epoch} loss {total.item() / STEPS_PER_EPOCH:.4f} {time.time() - began:.1f}s", flush=True)


if __name__ == "__main__":
    main()
