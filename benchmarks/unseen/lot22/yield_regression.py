"""Predicts the yield of a simulated reactor from sensor readings; keeps a record for the dashboard."""

import json
import os
import tempfile
import time

import numpy as np
import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 1500))
SENSORS, BATCH = 40, 256


def simulate(rows=30_000, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, SENSORS)).astype(np.float32)
    temperature, pressure = x[:, :8].sum(1), x[:, 8:16].mean(1)
    y = np.tanh(temperature / 3) * 2 + pressure * x[:, 20] + 0.1 * rng.normal(size=rows)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.float32))


class Regressor(nn.Module):
    def __init__(self, width=320, depth=4):
        super().__init__()
        sizes = [SENSORS] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x).squeeze(1)


class Record:
    def __init__(self, path):
        self.path = path
        self.entries = []

    def add(self, step, loss, model):
        names = [n for n, _ in model.named_parameters()]
        norms = torch.stack(torch._foreach_norm([p.grad for p in model.parameters()])).tolist()
        self.entries.append({
            "step": step,
            "loss": loss.item(),
            "grad_norm": dict(zip(names, norms)),
        })
        with open(self.path, "w") as out:
            json.dump(self.entries, out)


def minibatches(x, y, generator):
    while True:
        for chunk in torch.randperm(len(x), generator=generator).split(BATCH):
            yield x[chunk], y[chunk]


@torch.no_grad()
def r_squared(model, x, y):
    residual = (model(x) - y).pow(2).sum()
    return (1 - residual / (y - y.mean()).pow(2).sum()).item()


def main():
    torch.manual_seed(2)
    x, y = simulate()
    train_x, train_y, test_x, test_y = x[:27_000], y[:27_000], x[27_000:], y[27_000:]
    model = Regressor()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    record = Record(os.path.join(tempfile.mkdtemp(), "record.json"))
    batches = minibatches(train_x, train_y, torch.Generator().manual_seed(2))
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        bx, by = next(batches)
        loss = nn.functional.mse_loss(model(bx), by)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        record.add(step, loss, model)
        if step % 300 == 0:
            print(f"{step}: loss {record.entries[-1]['loss']:.4f}  test r2 {r_squared(model, test_x, test_y):.4f}")
    took = time.perf_counter() - begin
    print(f"{STEPS} steps, {took / STEPS * 1e3:.2f} ms a step")
    print("record in", record.path)


if __name__ == "__main__":
    main()
