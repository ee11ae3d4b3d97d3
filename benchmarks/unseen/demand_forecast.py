"""Daily demand forecast with a residual MLP; statistics go to a CSV file."""

import argparse
import csv
import os
import tempfile

import torch
import torch.nn as nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class Forecaster(nn.Module):
    def __init__(self, window, horizon, width, depth):
        super().__init__()
        self.first = nn.Linear(window, width)
        self.middle = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.last = nn.Linear(width, horizon)

    def forward(self, x):
        return self.last(self.middle(torch.relu(self.first(x))))


def gradient_stats(model):
    stats = {}
    total = 0.0
    for name, p in model.named_parameters():
        g = p.grad.detach()
        norm = g.norm(2).item()
        total += norm**2
        stats[f"{name}.norm"] = norm
        stats[f"{name}.ratio"] = norm / (p.detach().norm(2).item() + 1e-12)
        stats[f"{name}.max"] = g.abs().max().item()
        stats[f"{name}.std"] = g.std().item()
    stats["total"] = total**0.5
    return stats


def get_windows(series, window, horizon, n):
    start = torch.randint(0, len(series) - window - horizon, (n, 1))
    idx = start + torch.arange(window + horizon)
    block = series[idx]
    return block[:, :window], block[:, window:]


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 80)))
    parser.add_argument("--width", type=int, default=768)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    t = torch.arange(20_000, dtype=torch.float32)
    series = torch.sin(t / 7) + 0.5 * torch.sin(t / 365) + 0.1 * torch.randn_like(t)
    model = Forecaster(90, 14, args.width, depth=6)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    path = os.path.join(tempfile.gettempdir(), "forecast_stats.csv")
    with open(path, "w", newline="") as f:
        writer = csv.writer(f)
        for step in range(args.steps):
            x, y = get_windows(series, 90, 14, 8)
            loss = nn.functional.l1_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            stats = gradient_stats(model)
            opt.step()
            writer.writerow([step, *stats.values()])
            if step % 20 == 0:
                print(step, f"{loss.item():.4f}", f"{stats['total']:.3f}")


if __name__ == "__main__":
    main()
