"""Train a 1-D conv network that marks the first arrival in seismic records."""

import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
SHARDS = 24 if GPU else 2
PER_SHARD = 256 if GPU else 16
SAMPLES = 6000 if GPU else 1024
BATCH = 128 if GPU else 8
EPOCHS = 8 if GPU else 1
WORKERS = 8 if GPU else 1


def write_shards(folder):
    rng = np.random.default_rng(7)
    onsets = rng.integers(SAMPLES // 8, SAMPLES - SAMPLES // 8, (SHARDS, PER_SHARD))
    for s in range(SHARDS):
        waves = rng.integers(-400, 400, (PER_SHARD, 3, SAMPLES), dtype=np.int16)
        for i, at in enumerate(onsets[s]):
            waves[i, :, at:] *= 5
        np.save(os.path.join(folder, f"shard_{s:03d}.npy"), waves)
    return onsets


class Records(Dataset):
    def __init__(self, folder, onsets):
        self.folder = folder
        self.onsets = onsets

    def __len__(self):
        return self.onsets.size

    def __getitem__(self, index):
        shard, row = divmod(index, self.onsets.shape[1])
        waves = np.load(os.path.join(self.folder, f"shard_{shard:03d}.npy"))
        wave = waves[row].astype(np.float32)
        wave -= wave.mean(axis=1, keepdims=True)
        wave /= np.abs(wave).max() + 1e-6
        return torch.from_numpy(wave), int(self.onsets[shard, row])


class Picker(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        layers, channels = [], 3
        for level in range(5):
            out = width * min(2**level, 8)
            layers += [
                nn.Conv1d(channels, out, 7, stride=2, padding=3),
                nn.BatchNorm1d(out),
                nn.ReLU(inplace=True),
                nn.Conv1d(out, out, 5, padding=2),
                nn.BatchNorm1d(out),
                nn.ReLU(inplace=True),
            ]
            channels = out
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 1)

    def forward(self, x):
        x = self.encoder(x)
        return self.head(x.mean(dim=2)).squeeze(1)


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        onsets = write_shards(folder)
        loader = DataLoader(
            Records(folder, onsets),
            batch_size=BATCH,
            shuffle=True,
            num_workers=WORKERS,
            pin_memory=GPU,
            drop_last=True,
            persistent_workers=True,
        )
        model = Picker().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        step = 0
        for epoch in range(EPOCHS):
            for waves, onset in loader:
                waves = waves.to(device, non_blocking=True)
                target = onset.to(device, non_blocking=True).float() / SAMPLES
                with torch.autocast(device, dtype=torch.bfloat16):
                    pred = model(waves)
                loss = F.smooth_l1_loss(pred.float(), target, beta=0.05)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                if step % 20 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
                step += 1


if __name__ == "__main__":
    main()
