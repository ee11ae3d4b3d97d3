"""Train a one-stage detector that finds and classifies cells in microscope tiles."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
TILE = 224 if CUDA else 64
BATCH, WORKERS = (32, 4) if CUDA else (4, 0)
CLASSES, MAX_CELLS = 5, 16
STRIDES = (8, 16, 32)
EPOCHS, EPOCH_STEPS = 3, 300
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


class CellTiles(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(0)
        self.count = count
        self.tiles = rng.integers(0, 255, (256, 3, TILE, TILE), dtype=np.uint8)
        self.boxes = np.zeros((256, MAX_CELLS, 4), dtype=np.float32)
        self.labels = np.full((256, MAX_CELLS), -1, dtype=np.int64)
        for i in range(256):
            n = rng.integers(3, MAX_CELLS + 1)
            corner = rng.uniform(0, TILE * 0.7, (n, 2))
            size = rng.uniform(TILE * 0.08, TILE * 0.3, (n, 2))
            self.boxes[i, :n] = np.concatenate([corner, corner + size], 1)
            self.labels[i, :n] = rng.integers(0, CLASSES, n)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        i = index % len(self.tiles)
        return torch.from_numpy(self.tiles[i]), torch.from_numpy(self.boxes[i]), torch.from_numpy(self.labels[i])


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 64, 2), conv(64, 96, 2), conv(96, 96))
        widths = (96, 192, 256, 256)
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, 2), conv(b, b), conv(b, b)) for a, b in zip(widths, widths[1:])
        )
        self.laterals = nn.ModuleList(nn.Conv2d(w, 128, 1) for w in widths[1:])
        self.tower = nn.Sequential(conv(128, 128), conv(128, 128))
        self.out = nn.Conv2d(128, CLASSES + 4, 3, padding=1)
        nn.init.constant_(self.out.bias[:CLASSES], -4.0)

    def forward(self, x):
        x, levels = self.stem(x), []
        for stage, lateral in zip(self.stages, self.laterals):
            x = stage(x)
            levels.append(self.out(self.tower(lateral(x))).flatten(2))
        pred = torch.cat(levels, 2).transpose(1, 2).float()
        return pred[..., :CLASSES], F.softplus(pred[..., CLASSES:])


def make_points():
    points, strides = [], []
    for s in STRIDES:
        n = TILE // s
        axis = (torch.arange(n, device=device) + 0.5) * s
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        points.append(torch.stack([x, y], -1).reshape(-1, 2))
        strides.append(torch.full((n * n,), float(s), device=device))
    return torch.cat(points), torch.cat(strides)


def focal(logits, target):
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return ce * (target - logits.sigmoid()) ** 2


def tile_loss(logits, sides, points, strides, boxes, labels):
    keep = labels >= 0
    boxes, labels = boxes[keep], labels[keep]
    goal = torch.cat([points[:, None] - boxes[:, :2], boxes[:, 2:] - points[:, None]], -1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    cost = torch.where(goal.amin(-1) > 0, area, torch.inf)
    best, match = cost.min(1)
    pos = best < torch.inf
    target = torch.zeros_like(logits)
    target[pos, labels[match[pos]]] = 1.0
    goal = goal[pos, match[pos]] / strides[pos][:, None]
    count = goal.shape[0] + 1
    return focal(logits, target).sum() / count + F.smooth_l1_loss(sides[pos], goal, reduction="sum") / count


def detection_loss(logits, sides, points, strides, boxes, labels):
    losses = [tile_loss(logits[i], sides[i], points, strides, boxes[i], labels[i]) for i in range(len(logits))]
    return torch.stack(losses).mean()


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        CellTiles(BATCH * EPOCH_STEPS),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        pin_memory=CUDA,
        drop_last=True,
        persistent_workers=WORKERS > 0,
    )
    model = Detector().to(device, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    points, strides = make_points()
    step = 0
    for epoch in range(EPOCHS):
        for tiles, boxes, labels in loader:
            tiles = tiles.to(device, non_blocking=True).to(memory_format=torch.channels_last).float().div_(255)
            boxes, labels = boxes.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                logits, sides = model(tiles)
            loss = detection_loss(logits, sides, points, strides, boxes, labels)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if step == LIMIT_STEPS:
                return


if __name__ == "__main__":
    main()
