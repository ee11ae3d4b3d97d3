"""Small scans of handwritten digits, classified by a convolutional net.

The scans are exported once into an archive (images, labels, writer ids), as our annotation tool does it,
and are read from there for training.
"""

import argparse
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


def export(path, copies=2, seed=0):
    rng = np.random.default_rng(seed)
    digits = load_digits()
    images = np.repeat(digits.images.astype(np.float32) / 16, copies, axis=0)
    images = np.kron(images, np.ones((1, 2, 2), dtype=np.float32))
    images += rng.normal(0, 0.05, images.shape).astype(np.float32)
    labels = np.repeat(digits.target.astype(np.int64), copies)
    writers = rng.integers(0, 43, len(labels))
    np.savez(path, images=images.astype(np.float16), labels=labels, writers=writers)


class ScanDataset(Dataset):
    def __init__(self, path, train=True):
        self.data = np.load(path)
        self.length = len(self.data["labels"])
        self.train = train

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = torch.from_numpy(self.data["images"][index].astype(np.float32))
        label = int(self.data["labels"][index])
        if self.train:
            dx, dy = np.random.randint(-2, 3, size=2)
            image = torch.roll(image, (int(dy), int(dx)), dims=(0, 1))
        return image.unsqueeze(0), label


class ScanNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 24, 3, padding=1)
        self.conv2 = nn.Conv2d(24, 48, 3, padding=1)
        self.conv3 = nn.Conv2d(48, 64, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(64 * 4 * 4, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.conv3(x))
        return self.fc(self.drop(x.flatten(1)))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = total = 0
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    model.train()
    return right / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)

    folder = tempfile.mkdtemp(prefix="scans-")
    path = os.path.join(folder, "scans.npz")
    export(path)
    order = np.random.permutation(len(ScanDataset(path)))
    train_set = Subset(ScanDataset(path), order[300:].tolist())
    test_set = Subset(ScanDataset(path, train=False), order[:300].tolist())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, batch_size=100)

    model = ScanNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    step, start = 0, time.time()
    while step < args.steps:
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step:4d}  loss {loss.item():.4f}")
            if step == args.steps:
                break
    spent = time.time() - start
    print(f"test accuracy {accuracy(model, test_loader):.3f}")
    print(f"{spent / step * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
