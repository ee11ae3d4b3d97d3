"""ResNet-50 on photos of flowers."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
SIDE = 160 if CUDA else 64
BATCH = 256 if CUDA else 2
STEPS_PER_EPOCH = 160
EPOCHS = 2
SPECIES = 102
WORKERS = 12 if CUDA else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")


class Photos(Dataset):
    def __init__(self, kept=1024, length=BATCH * STEPS_PER_EPOCH):
        rng = np.random.default_rng(0)
        self.photos = rng.integers(0, 256, (kept, 3, SIDE, SIDE), dtype=np.uint8)
        self.species = rng.integers(0, SPECIES, kept)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        i %= len(self.photos)
        return torch.from_numpy(self.photos[i]), self.species[i]


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.side = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.side = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return F.relu(self.body(x) + self.side(x), inplace=True)


def resnet50(classes):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def prepare(photos):
    photos = photos.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
    photos = photos.to(torch.bfloat16).sub_(116.0).div_(58.0)
    flip = torch.rand(len(photos), 1, 1, 1, device=device) < 0.5
    return torch.where(flip, photos.flip(3), photos)


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Photos(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=CUDA,
        persistent_workers=True,
        prefetch_factor=3,
    )
    model = resnet50(SPECIES).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=CUDA)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS_PER_EPOCH)
    step, began = 0, time.time()
    for epoch in range(EPOCHS):
        for photos, species in loader:
            photos = prepare(photos)
            species = species.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(photos), species, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % 40 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {time.time() - began:.1f}s", flush=True)
            if LIMIT and step >= LIMIT:
                print("loss", loss.item())
                return


if __name__ == "__main__":
    main()
