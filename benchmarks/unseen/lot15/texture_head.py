"""Adapt a fixed convolutional encoder to a weave texture task with a small head."""

import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from scipy.ndimage import gaussian_filter, rotate


@dataclass
class Config:
    crop: int = 48
    batch: int = 24
    steps: int = 700
    lr: float = 3e-3
    log_every: int = 40


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class Encoder(nn.Module):
    """Stands in for a checkpoint from another project."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(conv(3, 24), conv(24, 32, 2), conv(32, 48), conv(48, 64, 2), conv(64, 64))
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(self.net(x)).flatten(1)


class Transfer(nn.Module):
    def __init__(self, encoder, classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, classes))

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x):
        features = self.encoder(x)
        return self.head(features)


def weave_photos(side=400, seed=0):
    """One large picture a class: threads of another direction and thickness."""
    rng = np.random.default_rng(seed)
    photos = []
    for angle, thickness in ((0, 1.0), (35, 1.0), (35, 1.8), (80, 1.8), (120, 1.3)):
        noise = rng.standard_normal((3, 2 * side, 2 * side)).astype(np.float32)
        threads = gaussian_filter(noise, (0, thickness, 9))
        turned = rotate(threads, angle, axes=(1, 2), reshape=False, order=1)
        photos.append(turned[:, side // 2 : -side // 2, side // 2 : -side // 2])
    return torch.from_numpy(np.stack(photos))


class RandomCrops:
    def __init__(self, images, crop, batch):
        self.images, self.crop, self.batch = images, crop, batch

    def __iter__(self):
        _, _, height, width = self.images.shape
        while True:
            labels = torch.randint(len(self.images), (self.batch,))
            tops = torch.randint(height - self.crop, (self.batch,)).tolist()
            lefts = torch.randint(width - self.crop, (self.batch,)).tolist()
            crops = [
                self.images[k, :, t : t + self.crop, l : l + self.crop] for k, t, l in zip(labels.tolist(), tops, lefts)
            ]
            x = torch.stack(crops)
            if torch.rand(()) < 0.5:
                x = x.flip(-1)
            yield x + 0.05 * torch.randn_like(x), labels


def main(cfg):
    torch.manual_seed(9)
    images = weave_photos()
    images = (images - images.mean()) / images.std()

    model = Transfer(Encoder(), classes=len(images)).train()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=cfg.lr)
    criterion = nn.CrossEntropyLoss()
    begin = time.perf_counter()
    for step, (x, y) in enumerate(RandomCrops(images, cfg.crop, cfg.batch), 1):
        loss = criterion(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if step % cfg.log_every == 0:
            now = time.perf_counter()
            print(f"[{step}] loss {loss.item():.4f}, {(now - begin) / cfg.log_every * 1e3:.1f} ms/step", flush=True)
            begin = now
        if step >= cfg.steps:
            break


if __name__ == "__main__":
    main(Config())
