"""Segmentation of crops in (synthetic) satellite tiles: 4 bands, 5 classes, a small U-Net, IoU on held-out tiles."""

import argparse
import time

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import nn

CLASSES = ["bare", "wheat", "maize", "forest", "water"]
SPECTRA = np.array([[0.30, 0.28, 0.33, 0.36], [0.12, 0.20, 0.14, 0.55], [0.10, 0.17, 0.11, 0.62],
                    [0.05, 0.09, 0.06, 0.42], [0.08, 0.07, 0.04, 0.02]], dtype=np.float32)


def tile(rng, size):
    seeds = rng.random((14, 2)) * size
    kinds = rng.integers(0, len(CLASSES), 14)
    grid = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"), -1)
    nearest = np.square(grid[:, :, None] - seeds).sum(-1).argmin(-1)
    label = kinds[nearest]
    bands = SPECTRA[label].transpose(2, 0, 1)
    shade = 1 + 0.5 * gaussian_filter(rng.normal(size=(size, size)), 4)
    return (bands * shade + rng.normal(0, 0.06, bands.shape)).astype(np.float32), label


def make_tiles(count, size, seed):
    rng = np.random.default_rng(seed)
    bands, labels = zip(*(tile(rng, size) for _ in range(count)))
    return torch.from_numpy(np.stack(bands)), torch.from_numpy(np.stack(labels))


def double_conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
                         nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, bands=4, classes=len(CLASSES), width=12):
        super().__init__()
        self.enter = double_conv(bands, width)
        self.inner = double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge1 = double_conv(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        a = self.enter(x)
        b = self.inner(self.pool(a))
        c = self.bottom(self.pool(b))
        b = self.merge2(torch.cat([self.up2(c), b], 1))
        a = self.merge1(torch.cat([self.up1(b), a], 1))
        return self.head(a)


def validate(model, images, labels, batch=8):
    model.eval()
    confusion = torch.zeros(len(CLASSES), len(CLASSES))
    with torch.no_grad():
        for x, y in zip(images.split(batch), labels.split(batch)):
            predicted = model(x).argmax(1)
            for t, p in zip(y.view(-1), predicted.view(-1)):
                confusion[t.long(), p.long()] += 1
    model.train()
    hit = confusion.diag()
    iou = hit / (confusion.sum(0) + confusion.sum(1) - hit).clamp(min=1)
    return iou, hit.sum() / confusion.sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tile", type=int, default=48)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--eval-every", type=int, default=25)
    args = parser.parse_args()
    torch.manual_seed(0)
    images, labels = make_tiles(160, args.tile, seed=1)
    val_images, val_labels = make_tiles(24, args.tile, seed=2)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=args.steps)
    criterion = nn.CrossEntropyLoss()
    best = 0.0
    start = time.time()
    for step in range(1, args.steps + 1):
        rows = torch.randint(len(images), (args.batch,))
        x, y = images[rows], labels[rows]
        if torch.rand(()) < 0.5:
            x, y = x.flip(-1), y.flip(-1)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % args.eval_every == 0:
            iou, accuracy = validate(model, val_images, val_labels)
            best = max(best, iou.mean().item())
            print(f"{step}: loss {loss.item():.3f} mIoU {iou.mean():.3f} accuracy {accuracy:.3f}", flush=True)
    print(f"best mIoU {best:.3f}, {(time.time() - start) / args.steps * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
