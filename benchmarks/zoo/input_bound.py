"""Train a wide ResNet-18 on compressed images that Python decodes as they are read.

    python input_bound.py
    python input_bound.py --tiny --steps 10        # small images and a thin network, for a CPU

The images are made from their index at the start and kept in memory in a format like PNG: a zlib
stream of rows, each with a filter byte. Reading one undoes the filters row by row and then shakes
the rows a little, by amounts that depend on the index alone.
"""

import argparse
import random
import struct
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
HEADER = struct.Struct("<HHB")


def encode(image):
    """Compress an image of (channels, rows, columns): each row has a filter byte, then differences."""
    channels, rows, columns = image.shape
    lines = []
    for plane in image:
        above = np.zeros(columns, dtype=np.uint8)
        for number, row in enumerate(plane):
            kind = number % 4
            left = np.concatenate([[0], row[:-1]]).astype(np.uint8)
            average = ((left.astype(int) + above) // 2).astype(np.uint8)
            before = [np.zeros_like(row), left, above, average][kind]
            lines.append(bytes([kind]) + (row - before).tobytes())
            above = row
    return HEADER.pack(rows, columns, channels) + zlib.compress(b"".join(lines), 1)


def undo_average(row, above):
    left = 0
    for column, up in enumerate(above):
        left = row[column] = (row[column] + (left + up) // 2) & 255
    return np.array(row, dtype=np.uint8)


def decode(blob):
    rows, columns, channels = HEADER.unpack_from(blob)
    data = zlib.decompress(blob[HEADER.size :])
    image = np.zeros((channels, rows, columns), dtype=np.uint8)
    offset = 0
    for plane in image:
        above = np.zeros(columns, dtype=np.uint8)
        for number in range(rows):
            (kind,) = struct.unpack_from("B", data, offset)
            row = np.frombuffer(data, dtype=np.uint8, count=columns, offset=offset + 1)
            if kind == 1:
                row = np.cumsum(row, dtype=np.uint8)
            elif kind == 2:
                row = row + above
            elif kind == 3:
                row = undo_average(row.tolist(), above.tolist())
            plane[number] = above = row
            offset += 1 + columns
    return image


def shake(image, rng):
    """Shift each row by its own few pixels and dim it a little."""
    out = np.empty_like(image)
    for number in range(image.shape[1]):
        shift = rng.randint(-3, 3)
        gain = rng.uniform(0.8, 1.0)
        out[:, number] = np.roll(image[:, number], shift, axis=1) * gain
    return out


class ImageDataset(Dataset):
    """`length` readings of `files` images in memory."""

    def __init__(self, size, files=1024, length=12800):
        self.length = length
        self.blobs = []
        grid = np.linspace(0, 2 * np.pi, size)
        for index in range(files):
            rng = np.random.default_rng(index)
            label = index % CLASSES
            wave = np.sin((1 + label % 5) * grid + rng.uniform(0, 6)) * np.cos((1 + label // 5 * 2) * grid)[:, None]
            tint = np.array([np.cos(label), np.sin(label), np.cos(2 * label)])[:, None, None]
            image = 128 + 50 * wave * tint + rng.normal(0, 12, (3, size, size))
            self.blobs.append(encode(image.clip(0, 255).astype(np.uint8)))

    def __len__(self):
        return self.length

    def read(self, index):
        image = decode(self.blobs[index % len(self.blobs)])
        return shake(image, random.Random(index)), index % len(self.blobs) % CLASSES

    def __getitem__(self, index):
        image, label = self.read(index)
        image = (torch.from_numpy(image).float() / 255 - 0.5) / 0.25
        return image, label


class BasicBlock(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Sequential()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        blocks = []
        inner = width
        for stage in range(4):
            outer = width * 2**stage
            blocks += [BasicBlock(inner, outer, 1 if stage == 0 else 2), BasicBlock(outer, outer, 1)]
            inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="small images and a thin network, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.size, args.width = 128, 96
    if args.tiny:
        args.size, args.width, args.batch_size = 32, 8, 32
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader = DataLoader(ImageDataset(args.size), batch_size=args.batch_size, shuffle=True)
    model = ResNet18(args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    step, total, start = 0, 0.0, time.perf_counter()
    while step < args.steps:
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
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
