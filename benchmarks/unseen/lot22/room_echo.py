"""Estimates the reverberation of a room from its impulse response."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", 1500))
SAMPLES, RATE = 2048, 8000


def impulse_responses(count=3000, seed=4):
    rng = np.random.default_rng(seed)
    t = np.arange(SAMPLES) / RATE
    rt60 = rng.uniform(0.02, 0.06, (count, 1))
    envelope = np.exp(-13.8 * t[None] / rt60)
    tail = rng.normal(size=(count, SAMPLES)) * envelope
    tail[:, 0] = 1.0
    absorb = rng.uniform(0.05, 0.4, (count, 1))
    targets = np.concatenate([rt60 / 0.06, absorb], 1)
    signal = tail * (1 - absorb)
    return torch.from_numpy(signal.astype(np.float32)), torch.from_numpy(targets.astype(np.float32))


class Estimator(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(SAMPLES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.net(x)


@torch.no_grad()
def mean_error(model, x, y):
    model.eval()
    error = (model(x) - y).abs().mean(0)
    model.train()
    return error.tolist()


def cycle(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(4)
    x, y = impulse_responses()
    train = TensorDataset(x[:2600], y[:2600])
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    model = Estimator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.SmoothL1Loss()
    begin = time.perf_counter()
    batches = cycle(loader)
    for step in range(1, STEPS + 1):
        responses, targets = next(batches)
        loss = loss_fn(model(responses), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            decay, absorb = mean_error(model, x[2600:], y[2600:])
            print(f"step {step:4d}  loss {loss.item():.5f}  error decay {decay:.4f} absorb {absorb:.4f}")
    took = time.perf_counter() - begin
    print(f"{STEPS} steps, {took / STEPS * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
