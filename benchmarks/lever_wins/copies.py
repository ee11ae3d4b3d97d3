"""Train a small convolution net on large batches that lie ready in memory that the workers share, so that no time goes
into making them; the script copies each to the GPU from there, which is no pinned memory, and waits.

python copies.py --tiny
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    """Ready batches of images; each item is a whole batch."""

    def __init__(self, count, rows, side):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(4, rows, 3, side, side, generator=generator).share_memory_()
        self.labels = torch.randint(10, (4, rows), generator=generator).share_memory_()
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.images[i % 4], self.labels[i % 4]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    rows, side, width = (4, 16, 8) if args.tiny else (96, 224, 64)
    torch.manual_seed(0)
    loader = DataLoader(Batches(3000, rows, side), batch_size=None, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, width, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    ).to(args.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(args.device), labels.to(args.device)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
