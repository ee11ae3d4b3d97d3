"""Train a small head on top of a fixed feature extractor."""

import numpy as np
import torch
from scipy import ndimage
from torch import nn


def make_textures(n, classes, rng):
    labels = rng.integers(0, classes, n)
    images = np.empty((n, 3, 32, 32), np.float32)
    for i, label in enumerate(labels):
        noise = rng.normal(size=(3, 32, 32))
        images[i] = ndimage.uniform_filter(noise, (1, 1 + label, 1 + label // 2))
    images /= images.std(axis=(1, 2, 3), keepdims=True)
    return torch.from_numpy(images), torch.from_numpy(labels)


def conv(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(conv(3, 32, 1), conv(32, 32, 2), conv(32, 64, 2), conv(64, 64, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(self.layers(x)).flatten(1)


class Classifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x):
        features = self.backbone(x)
        return self.head(features)


def accuracy(model, images, labels):
    model.head.eval()
    with torch.inference_mode():
        result = (model(images).argmax(1) == labels).float().mean().item()
    model.head.train()
    return result


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    images, labels = make_textures(6400, 8, rng)
    held, held_labels = make_textures(128, 8, rng)
    backbone = Backbone()
    with torch.inference_mode():
        for chunk in images[:640].split(64):
            backbone(chunk)
    backbone.eval()
    model = Classifier(backbone, 8)
    opt = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
    batch = 64
    for epoch in range(3):
        order = torch.randperm(len(images))
        for step, chunk in enumerate(order.split(batch)):
            logits = model(images[chunk])
            loss = nn.functional.cross_entropy(logits, labels[chunk])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
        print(f"epoch {epoch} held-out accuracy {accuracy(model, held, held_labels):.3f}")


if __name__ == "__main__":
    main()
