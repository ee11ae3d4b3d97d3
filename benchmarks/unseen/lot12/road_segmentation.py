"""Segmentation of synthetic road scenes with a small encoder and a light decoder."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 5


def make_scenes(n, size):
    g = torch.Generator().manual_seed(3)
    coarse = torch.randint(CLASSES, (n, 1, 6, 6), generator=g).float()
    labels = F.interpolate(coarse, size=(size, size), mode="nearest").long().squeeze(1)
    palette = torch.rand(CLASSES, 3, generator=g)
    images = palette[labels].permute(0, 3, 1, 2)
    return images + 0.2 * torch.randn(images.shape, generator=g), labels


def conv_block(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = conv_block(3, width, 2)
        self.down = conv_block(width, 2 * width, 2)
        self.body = nn.Sequential(conv_block(2 * width, 4 * width, 2), conv_block(4 * width, 4 * width, 1))

    def forward(self, x):
        return self.body(self.down(self.stem(x)))


class Head(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.mix = conv_block(channels, 128, 1)
        self.classify = nn.Conv2d(128, classes, 1)

    def forward(self, x, size):
        x = self.mix(x)
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
        return self.classify(x)


class SegNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.encoder = Encoder(width)
        self.head = Head(4 * width, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(x), x.shape[-2:])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--size", type=int, default=96)
    args = p.parse_args()

    torch.manual_seed(0)
    images, labels = make_scenes(400, args.size)
    model = SegNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        for step, idx in enumerate(torch.randperm(len(images)).split(args.batch_size)):
            logits = model(images[idx])
            loss = F.cross_entropy(logits, labels[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
