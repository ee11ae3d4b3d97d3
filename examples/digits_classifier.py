"""Train a small CNN on scikit-learn's handwritten digits, with augmentation.

    python examples/digits_classifier.py
    python examples/digits_classifier.py --epochs 50 --lr 0.1

Each 8x8 digit is drawn at 32x32, turned and shifted a little and given some noise, anew every time it
is read. After each epoch the accuracy on a fifth of the digits, held out, is printed.
"""

import argparse
import math
import random
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, Dataset


class DigitsDataset(Dataset):
    """Digits at 32x32. An epoch goes over the set `repeat` times, since it is small."""

    def __init__(self, images, labels, size=32, augment=False, repeat=1):
        self.images = images
        self.labels = labels
        self.size = size
        self.augment = augment
        self.repeat = repeat

    def __len__(self):
        return len(self.images) * self.repeat

    def __getitem__(self, index):
        index = index % len(self.images)
        angle, dx, dy, noise = 0.0, 0.0, 0.0, 0.0
        if self.augment:
            angle = math.radians(random.uniform(-15, 15))
            dx = random.uniform(-1, 1)
            dy = random.uniform(-1, 1)
            noise = 0.05
        image = self.draw(self.images[index], angle, dx, dy, noise)
        return torch.from_numpy(image).unsqueeze(0), int(self.labels[index])

    def draw(self, image, angle, dx, dy, noise):
        """Upscale, rotate and shift with bilinear interpolation, pixel by pixel."""
        src = image.tolist()
        n = len(src)
        cos, sin = math.cos(angle), math.sin(angle)
        center = (n - 1) / 2
        out = np.zeros((self.size, self.size), dtype=np.float32)
        for row in range(self.size):
            v = (row + 0.5) * n / self.size - 0.5 - center
            for col in range(self.size):
                u = (col + 0.5) * n / self.size - 0.5 - center
                x = cos * u - sin * v + center - dx
                y = sin * u + cos * v + center - dy
                x0, y0 = math.floor(x), math.floor(y)
                value = random.gauss(0, noise)
                if 0 <= x0 < n - 1 and 0 <= y0 < n - 1:
                    fx, fy = x - x0, y - y0
                    top = src[y0][x0] * (1 - fx) + src[y0][x0 + 1] * fx
                    bottom = src[y0 + 1][x0] * (1 - fx) + src[y0 + 1][x0 + 1] * fx
                    value += (top * (1 - fy) + bottom * fy) / 16
                out[row, col] = value
        return out


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.max_pool2d(F.relu(self.conv3(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        correct += (model(images).argmax(dim=1) == labels).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(digits.images, digits.target, test_size=0.2, random_state=0)
    train_loader = DataLoader(
        DigitsDataset(train_x, train_y, augment=True, repeat=3), batch_size=args.batch_size, shuffle=True
    )
    test_loader = DataLoader(DigitsDataset(test_x, test_y), batch_size=args.batch_size)

    model = SmallCNN().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    start = time.time()
    for epoch in range(args.epochs):
        model.train()
        for step, (images, labels) in enumerate(train_loader):
            images, labels = images.to(args.device), labels.to(args.device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} time {time.time() - start:.1f}s")
        print(f"epoch {epoch} test accuracy {evaluate(model, test_loader, args.device):.4f}")


if __name__ == "__main__":
    main()
