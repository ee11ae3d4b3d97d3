"""Surrogate model for lift and drag coefficients of an airfoil.

The training table is simulated here, so that the script needs no download.
"""

import os

import numpy as np
import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", "80"))
BATCH = 768


def simulate(n, seed=3):
    rng = np.random.default_rng(seed)
    shape = rng.normal(size=(n, 48))
    alpha = rng.uniform(-5, 15, size=(n, 1))
    mach = rng.uniform(0.1, 0.7, size=(n, 1))
    x = np.concatenate([shape, alpha, mach], axis=1)
    lift = 0.11 * alpha[:, 0] + np.tanh(shape[:, :4].sum(1))
    drag = 0.01 + 0.04 * lift**2 / (1 - mach[:, 0] ** 2)
    y = np.stack([lift, drag], axis=1)
    return (x - x.mean(0)) / x.std(0), y


class Surrogate(nn.Module):
    def __init__(self, n_in, width=384, depth=4):
        super().__init__()
        layers = [nn.Linear(n_in, width), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.ReLU()]
        layers.append(nn.Linear(width, 2))
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return self.body(x)


def main():
    torch.manual_seed(0)
    x_np, y_np = simulate(40_000)
    x_train = torch.from_numpy(x_np)
    y_train = torch.from_numpy(y_np)

    net = Surrogate(x_train.shape[1]).to(x_train.dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    criterion = nn.MSELoss()

    order = torch.randperm(len(x_train))
    per_epoch = len(x_train) // BATCH
    for step in range(STEPS):
        k = step % per_epoch
        idx = order[k * BATCH : (k + 1) * BATCH]
        pred = net(x_train[idx])
        loss = criterion(pred, y_train[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4d}  mse {loss.item():.5f}")


if __name__ == "__main__":
    main()
