"""Fit a damped wave u(x, y, t) with a wide multilayer perceptron; the data are tensors in memory.

    python examples/no_loader.py
    python examples/no_loader.py --steps 10000 --width 2048 --batch-size 4096

The points and their values are prepared once. Each step takes a random minibatch of them by index.
"""

import argparse
import math
import time

import torch
from torch import nn


class WaveNet(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.register_buffer("frequencies", 2 * math.pi * torch.randn(3, 64))
        blocks = [nn.Linear(128, width), nn.GELU()]
        for _ in range(layers - 1):
            blocks += [nn.Linear(width, width), nn.GELU()]
        blocks.append(nn.Linear(width, 1))
        self.net = nn.Sequential(*blocks)

    def forward(self, points):
        phase = points @ self.frequencies
        features = torch.cat([torch.sin(phase), torch.cos(phase)], dim=1)
        return self.net(features)


def wave(points):
    """Two damped standing waves and a ring that spreads from the middle."""
    x, y, t = points[:, 0], points[:, 1], points[:, 2]
    standing = torch.sin(2 * math.pi * x) * torch.sin(3 * math.pi * y) * torch.cos(4 * math.pi * t)
    fast = 0.5 * torch.sin(5 * math.pi * x) * torch.sin(math.pi * y) * torch.cos(7 * math.pi * t)
    radius = torch.sqrt((x - 0.5) ** 2 + (y - 0.5) ** 2)
    ring = torch.exp(-80 * (radius - 0.6 * t) ** 2)
    return (torch.exp(-t) * (standing + fast) + ring).unsqueeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    points = torch.rand(args.points, 3).to(args.device)
    values = wave(points)
    values = (values - values.mean()) / values.std()
    test_points = torch.rand(4096, 3).to(args.device)
    test_values = wave(test_points)
    test_values = (test_values - test_values.mean()) / test_values.std()

    model = WaveNet(args.width, args.layers).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.MSELoss()

    losses = []
    start = time.time()
    for step in range(1, args.steps + 1):
        index = torch.randint(0, args.points, (args.batch_size,), device=args.device)
        prediction = model(points[index])
        loss = criterion(prediction, values[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0:
            mean = sum(losses[-20:]) / 20
            print(f"step {step} loss {mean:.5f} time {time.time() - start:.1f}s")

    with torch.no_grad():
        test_loss = criterion(model(test_points), test_values)
    print(f"test loss {test_loss.item():.5f}")


if __name__ == "__main__":
    main()
