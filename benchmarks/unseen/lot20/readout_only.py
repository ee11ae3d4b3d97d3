"""How far do random filters go? A readout is trained on top of a random convolutional network (digits, 32 x 32).

A control for our self-supervised runs: same architecture, filters as they were drawn, and a trained readout of two
layers. Images are shifted, scaled and noised anew each time.
"""

import argparse
import csv
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class ResidualUnit(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1)
        self.b = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.b(F.relu(self.a(x))))


class RandomEncoder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.stage1 = ResidualUnit(width)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.stage2 = ResidualUnit(2 * width)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = self.stage1(x)
        x = F.relu(self.down(x))
        return self.stage2(x)


class Probe(nn.Module):
    def __init__(self, encoder, features, classes=10):
        super().__init__()
        self.encoder = encoder
        self.readout = nn.Sequential(
            nn.Flatten(), nn.LayerNorm(features), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes)
        )

    def forward(self, x):
        return self.readout(F.avg_pool2d(self.encoder(x), 2))


def digits():
    images, target = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    images = F.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
    return images, torch.tensor(target)


def augment(x):
    dx, dy = torch.randint(-3, 4, (2,)).tolist()
    x = torch.roll(x, (dy, dx), dims=(2, 3))
    gain = 0.8 + 0.4 * torch.rand(x.size(0), 1, 1, 1)
    return x * gain + 0.05 * torch.randn_like(x)


def test(model, images, target):
    model.eval()
    with torch.no_grad():
        guess = torch.cat([model(part).argmax(1) for part in images.split(128)])
    model.train()
    return (guess == target).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    images, target = digits()
    order = torch.randperm(len(target))
    train, held_out = order[:1500], order[1500:]

    encoder = RandomEncoder()
    model = Probe(encoder, features=48 * 4 * 4)
    optimizer = torch.optim.Adam(model.readout.parameters(), lr=args.lr)
    writer = csv.writer(sys.stdout)
    writer.writerow(["step", "loss", "test_accuracy"])

    begin = time.time()
    for step in range(1, args.steps + 1):
        rows = train[torch.randint(len(train), (args.batch_size,))]
        logits = model(augment(images[rows]))
        loss = F.cross_entropy(logits, target[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 150 == 0:
            writer.writerow([step, f"{loss.item():.4f}", f"{test(model, images[held_out], target[held_out]):.4f}"])
    print(f"# {(time.time() - begin) / args.steps * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
