"""Train a vision transformer on photographs of minerals."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
SIZE, PATCH = 176, 16
DIM, DEPTH, HEADS = (512, 8, 8) if CUDA else (64, 2, 2)
BATCH = 64 if CUDA else 8
WORKERS = 4 if CUDA else 0
CLASSES = 120
EPOCHS, EPOCH_STEPS = 2, 320
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


class MineralPhotos(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(3)
        self.count = count
        self.photos = rng.integers(0, 255, (512, 3, SIZE, SIZE), dtype=np.uint8)
        self.species = rng.integers(0, CLASSES, 512)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        i = index % len(self.photos)
        photo = self.photos[i]
        if index & 1:
            photo = np.ascontiguousarray(photo[:, :, ::-1])
        return torch.from_numpy(photo), int(self.species[i])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(attended.transpose(1, 2).reshape(b, t, DIM))
        return x + self.mlp(self.norm2(x))


class PhotoTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.position = nn.Parameter(torch.randn((SIZE // PATCH) ** 2, DIM) * 0.02)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        MineralPhotos(BATCH * EPOCH_STEPS),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        pin_memory=CUDA,
        drop_last=True,
        persistent_workers=WORKERS > 0,
    )
    model = PhotoTransformer().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, fused=True)
    mean = torch.tensor([124.0, 116.0, 104.0], device=device).view(3, 1, 1)
    std = torch.tensor([58.0, 57.0, 57.0], device=device).view(3, 1, 1)
    total = torch.zeros((), device=device)
    step = 0
    for epoch in range(EPOCHS):
        for photos, species in loader:
            photos = (photos.to(device, non_blocking=True).float() - mean) / std
            species = species.to(device, non_blocking=True)
            loss = F.cross_entropy(model(photos), species, label_smoothing=0.1)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
            step += 1
            if step % 80 == 0:
                print(f"epoch {epoch} step {step} loss {total.item() / 80:.4f}", flush=True)
                total.zero_()
            if step == LIMIT_STEPS:
                return


if __name__ == "__main__":
    main()
