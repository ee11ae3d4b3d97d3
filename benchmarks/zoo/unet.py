"""Train a UNet to segment shapes: 31M parameters, 256x256 pixels, four classes.

    python unet.py
    python unet.py --tiny --steps 10        # small images and a thin network, for a CPU

The images are made at the start: discs, boxes and rings on noise, with their masks. The loss is
cross-entropy plus dice, as in many segmentation repositories.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 4


class ShapesDataset(Dataset):
    """`length` readings of a pool of images and masks; every second one is mirrored."""

    def __init__(self, size, pool=128, length=3200):
        generator = torch.Generator().manual_seed(1)
        rows = torch.linspace(-1, 1, size)[:, None]
        columns = torch.linspace(-1, 1, size)[None, :]
        self.images = torch.empty(pool, 3, size, size, dtype=torch.uint8)
        self.masks = torch.zeros(pool, size, size, dtype=torch.uint8)
        for i in range(pool):
            image = 100 + torch.randn(3, size, size, generator=generator) * 40
            for _ in range(6):
                y, x, radius, kind = torch.rand(4, generator=generator).tolist()
                y, x, radius, kind = 1.6 * y - 0.8, 1.6 * x - 0.8, 0.1 + 0.2 * radius, 1 + int(3 * kind)
                away = ((rows - y) ** 2 + (columns - x) ** 2).sqrt()
                box = torch.maximum((rows - y).abs(), (columns - x).abs())
                inside = [away < radius, box < radius, (away < radius) & (away > radius / 2)][kind - 1]
                tint = torch.rand(3, 1, generator=generator) * 120
                image[:, inside] += tint
                self.masks[i, inside] = kind
            self.images[i] = image.clamp(0, 255).byte()
        self.length = length

    def __len__(self):
        return self.length

    def read(self, i):
        image, mask = self.images[i % len(self.images)], self.masks[i % len(self.images)]
        if i // len(self.images) % 2:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask

    def __getitem__(self, i):
        image, mask = self.read(i)
        return image.float() / 255, mask.long()


class DoubleConv(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    def __init__(self, width, depth=4):
        super().__init__()
        widths = [width * 2**i for i in range(depth + 1)]
        self.inc = DoubleConv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList([DoubleConv(a, b) for a, b in zip(widths[:-1], widths[1:])])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths[:-1], widths[1:])])
        self.merge = nn.ModuleList([DoubleConv(2 * a, a) for a in widths[:-1]])
        self.out = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for block in self.down:
            skips.append(block(self.pool(skips[-1])))
        x = skips.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.out(x)


def segmentation_loss(logits, masks):
    """Cross-entropy plus dice."""
    probs = torch.softmax(logits, dim=1)
    onehot = torch.zeros_like(probs).scatter_(1, masks.unsqueeze(1), 1.0)
    cross_entropy = -(onehot * torch.log(probs + 1e-7)).sum(dim=1).mean()
    both = (probs * onehot).sum(dim=(0, 2, 3))
    total = probs.sum(dim=(0, 2, 3)) + onehot.sum(dim=(0, 2, 3))
    dice = ((2 * both + 1) / (total + 1)).mean()
    return cross_entropy + 1 - dice


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="small images and a thin network, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.size, args.width = 256, 64
    if args.tiny:
        args.size, args.width, args.batch_size = 32, 4, 8
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader = DataLoader(ShapesDataset(args.size), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = UNet(args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    step, total, hits, start = 0, 0.0, 0.0, time.perf_counter()
    while step < args.steps:
        for images, masks in loader:
            images, masks = images.to(device), masks.to(device)
            optimizer.zero_grad()
            logits = model(images)
            loss = segmentation_loss(logits, masks)
            loss.backward()
            optimizer.step()
            total += loss.item()
            hits += (logits.argmax(dim=1) == masks).float().mean().item()
            step += 1
            if step % args.log_every == 0:
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                scores = f"mean {total / step:.4f} pixels right {hits / step:.4f}"
                print(f"step {step} loss {loss.item():.4f} {scores} {ms:.2f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
