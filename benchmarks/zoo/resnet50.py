"""Train ResNet-50 on 224x224 images of 100 classes, made at the start and kept in memory.

    python resnet50.py
    python resnet50.py --tiny --steps 10        # small images and a thin network, for a CPU

Each class is a coloured pattern of waves; the images of a class differ in noise, place and strength.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 100


class PatternDataset(Dataset):
    """`length` readings of a pool of images, kept as bytes."""

    def __init__(self, size, pool=512, length=12800):
        generator = torch.Generator().manual_seed(1)
        waves = torch.randn(CLASSES, 3, 2, generator=generator) * 12
        phases = torch.rand(CLASSES, 3, 1, 1, generator=generator) * 6
        axis = torch.linspace(0, 1, size)
        self.labels = torch.arange(pool) % CLASSES
        self.images = torch.empty(pool, 3, size, size, dtype=torch.uint8)
        for i, label in enumerate(self.labels.tolist()):
            down = waves[label, :, 0, None, None] * axis[None, :, None]
            across = waves[label, :, 1, None, None] * axis[None, None, :]
            place, strength = torch.rand(2, generator=generator).tolist()
            pattern = torch.sin(down + across + phases[label] + place) * (30 + 40 * strength)
            noise = torch.randn(3, size, size, generator=generator) * 25
            self.images[i] = (128 + pattern + noise).clamp(0, 255).byte()
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        i = i % len(self.images)
        return self.images[i], self.labels[i]


class Bottleneck(nn.Module):
    def __init__(self, inner, middle, stride):
        super().__init__()
        outer = 4 * middle
        self.conv1 = nn.Conv2d(inner, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + identity)


class ResNet(nn.Module):
    def __init__(self, width=64, depths=(3, 4, 6, 3)):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks = []
        inner = width
        for stage, depth in enumerate(depths):
            middle = width * 2**stage
            for number in range(depth):
                blocks.append(Bottleneck(inner, middle, 2 if stage > 0 and number == 0 else 1))
                inner = 4 * middle
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inner, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.blocks(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="small images and a thin network, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.size, args.width, args.depths = 224, 64, (3, 4, 6, 3)
    if args.tiny:
        args.size, args.width, args.depths, args.batch_size = 48, 8, (1, 1, 1, 1), 16
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader = DataLoader(PatternDataset(args.size), batch_size=args.batch_size, shuffle=True)
    model = ResNet(args.width, args.depths).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    step, total, start = 0, 0.0, time.perf_counter()
    while step < args.steps:
        for images, labels in loader:
            images = images.to(device).float().div(255).sub(0.5).div(0.25)
            labels = labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
            if step % args.log_every == 0:
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                print(f"step {step} loss {loss.item():.4f} mean {total / step:.4f} {ms:.1f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
