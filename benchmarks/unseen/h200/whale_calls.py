"""Classify whale calls from one-second hydrophone clips."""

import os

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

GPU = torch.cuda.is_available()
CLIP = 16000
CLASSES = 12
BATCH = 128 if GPU else 8
RECORDINGS = 400 if GPU else 20
EPOCHS = 10
STEPS_PER_EPOCH = 60
WORKERS = 6 if GPU else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class HydrophoneClips(Dataset):
    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        t = np.arange(4 * CLIP, dtype=np.float32) / 16000
        self.labels = rng.integers(0, CLASSES, RECORDINGS)
        self.recordings = np.stack(
            [
                np.sin(2 * np.pi * (60 + 90 * k) * t) + 0.3 * rng.standard_normal(len(t), dtype=np.float32)
                for k in self.labels
            ]
        ).astype(np.float32)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        r = i % RECORDINGS
        start = (i * 7919) % (3 * CLIP)
        clip = self.recordings[r, start : start + CLIP]
        return clip / np.abs(clip).max(), int(self.labels[r])


def collate(batch):
    waves = torch.tensor([wave for wave, _ in batch])
    labels = torch.tensor([label for _, label in batch])
    return waves.unsqueeze(1), labels


def block(c_in, c_out, kernel, stride):
    return nn.Sequential(
        nn.Conv1d(c_in, c_out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm1d(c_out), nn.ReLU(inplace=True)
    )


class CallNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.features = nn.Sequential(
            block(1, width, 79, 4),
            block(width, width, 5, 4),
            block(width, 2 * width, 5, 2),
            block(2 * width, 4 * width, 5, 2),
            block(4 * width, 4 * width, 5, 2),
        )
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, x):
        return self.head(self.features(x).mean(-1))


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    data = HydrophoneClips(BATCH * STEPS_PER_EPOCH)
    loader = DataLoader(
        data,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        collate_fn=collate,
        pin_memory=GPU,
        persistent_workers=True,
        prefetch_factor=4,
    )
    model = CallNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=GPU)
    criterion = nn.CrossEntropyLoss()

    step = 0
    for epoch in range(EPOCHS):
        model.train()
        for waves, labels in loader:
            waves = waves.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = criterion(model(waves), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if LIMIT and step >= LIMIT:
                return


if __name__ == "__main__":
    main()
