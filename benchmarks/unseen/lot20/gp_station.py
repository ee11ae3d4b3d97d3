"""Hyperparameters of a Gaussian process for hourly temperatures of a weather station.

The marginal likelihood of random subsets of the series is maximised (a subset of data, drawn anew each step),
for a kernel of a daily and a weather part. Prints RMSE of a held-out gap now and then.
"""

import math
import os
import time

import numpy as np
import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 500))
SUBSET = 600


def station(days=200, seed=3):
    rng = np.random.default_rng(seed)
    hours = np.arange(days * 24)
    yearly = 9 * np.sin(2 * np.pi * hours / (365 * 24) - 1.3)
    daily = 4 * np.sin(2 * np.pi * hours / 24 - 2.0) * (1 + 0.3 * np.sin(hours / 300))
    weather = np.zeros(len(hours))
    for t in range(1, len(hours)):
        weather[t] = 0.985 * weather[t - 1] + rng.normal(0, 0.45)
    temperature = 10 + yearly + daily + weather + rng.normal(0, 0.3, len(hours))
    return hours.astype(np.float64) / 24, temperature


class StationKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.log_length = nn.Parameter(torch.tensor([0.0, 1.0]))
        self.log_noise = nn.Parameter(torch.tensor(-0.5))

    def forward(self, a, b):
        distance = a[:, None] - b[None, :]
        scale, length = self.log_scale.exp(), self.log_length.exp()
        daily = scale[0] * torch.exp(-2 * (torch.sin(math.pi * distance) / length[0]) ** 2)
        weather = scale[1] * torch.exp(-distance.abs() / length[1])
        return daily + weather

    @property
    def noise(self):
        return self.log_noise.exp() + 1e-4


def negative_log_likelihood(kernel, x, y):
    n = x.numel()
    covariance = kernel(x, x) + kernel.noise * torch.eye(n, dtype=x.dtype)
    precision = torch.inverse(covariance)
    fit = y @ precision @ y
    complexity = torch.logdet(covariance)
    return 0.5 * (fit + complexity + n * math.log(2 * math.pi)) / n


@torch.no_grad()
def held_out_error(kernel, x, y, x_new, y_new):
    covariance = kernel(x, x) + kernel.noise * torch.eye(len(x), dtype=x.dtype)
    mean = kernel(x_new, x) @ torch.linalg.solve(covariance, y)
    return (mean - y_new).square().mean().sqrt().item()


def main():
    torch.manual_seed(0)
    days, temperature = station()
    x = torch.from_numpy(days)
    y = torch.from_numpy(temperature - temperature.mean())
    gap = (x > 120) & (x < 123)
    x_train, y_train, x_gap, y_gap = x[~gap], y[~gap], x[gap], y[gap]
    near = (x_train > 112) & (x_train < 131)

    kernel = StationKernel().double()
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=1e-3)
    losses = []
    begin = time.time()
    for step in range(1, STEPS + 1):
        first = torch.randint(len(x_train) - 3 * SUBSET, (1,))
        chosen = first + torch.randperm(3 * SUBSET)[:SUBSET]
        loss = negative_log_likelihood(kernel, x_train[chosen], y_train[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
        if step % 100 == 0:
            recent = torch.stack(losses[-100:]).mean()
            error = held_out_error(kernel, x_train[near], y_train[near], x_gap, y_gap)
            print(f"step {step}: nll {recent:.4f}, gap rmse {error:.3f} K, noise {kernel.noise.item():.3f}")
    print(f"{(time.time() - begin) / STEPS * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
