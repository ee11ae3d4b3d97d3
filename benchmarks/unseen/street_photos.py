import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class ColorJitter:
    def __init__(self, gamma=0.3, noise=0.02):
        self.gamma, self.noise = gamma, noise

    def __call__(self, img):
        g = 1.0 + np.random.uniform(-self.gamma, self.gamma)
        img = np.power(img, g)
        img = img + np.random.normal(0.0, self.noise, size=img.shape)
        return np.clip(img, 0.0, 1.0)


class Downscale:
    def __init__(self, size):
        self.size = size

    def __call__(self, img):
        k = img.shape[0] // self.size
        return img.reshape(self.size, k, self.size, k, 3).mean(axis=(1, 3))


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, img):
        for t in self.transforms:
            img = t(img)
        return img


class StreetPhotos(Dataset):
    def __init__(self, n=160, transform=None):
        rng = np.random.default_rng(5)
        self.images = rng.integers(0, 255, size=(n, 192, 192, 3), dtype=np.uint8)
        self.labels = rng.integers(0, 10, size=n)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img = self.images[i] / 255.0
        img = self.transform(img)
        return torch.tensor(img, dtype=torch.float32).permute(2, 0, 1), int(self.labels[i])


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def main(args):
    np.random.seed(0)
    torch.manual_seed(0)
    transform = Compose([ColorJitter(), Downscale(48)])
    loader = DataLoader(StreetPhotos(transform=transform), batch_size=args.batch_size, shuffle=True)
    net = build_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    main(parser.parse_args())
