"""MLP regression on a table in memory."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 80))
BATCH = 1024


def make_table(n=16_384, d=256):
    g = torch.Generator().manual_seed(21)
    x = torch.randn(n, d, generator=g)
    y = torch.sin(x[:, :16].sum(1, keepdim=True)) + 0.1 * torch.randn(n, 1, generator=g)
    return x, y


def batches(x, y, size):
    while True:
        order = torch.randperm(len(x))
        for idx in order.split(size):
            yield x[idx], y[idx]


def main():
    torch.manual_seed(0)
    x, y = make_table()
    model = nn.Sequential(
        nn.Linear(256, 640),
        nn.ReLU(inplace=True),
        nn.Linear(640, 640),
        nn.ReLU(inplace=True),
        nn.Linear(640, 640),
        nn.ReLU(inplace=True),
        nn.Linear(640, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loss_fn = nn.MSELoss()
    running = torch.zeros(())
    for step, (xb, yb) in zip(range(STEPS), batches(x, y, BATCH)):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(xb), yb)
        loss.backward()
        optimizer.step()
        running += loss.detach()
        if (step + 1) % 40 == 0:
            print(f"step {step + 1} mean mse {running.item() / 40:.4f}")
            running.zero_()


if __name__ == "__main__":
    main()
