"""Remaining-life regression for engines from windows of sensor readings."""

import time

import torch
from torch import nn

SENSORS = 14
LENGTH = 128


def make_engines(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    life = 130 * torch.rand(n, generator=g)
    wear = torch.exp(-life / 40)[:, None, None] * torch.linspace(0, 1, LENGTH)
    mix = torch.randn(1, SENSORS, 1, generator=g)
    x = wear * mix + 0.2 * torch.randn(n, SENSORS, LENGTH, generator=g)
    return x, life / 130


class Block(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.conv2 = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv2(torch.relu(self.conv1(x)))))


class LifeNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.stem = nn.Conv1d(SENSORS, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(width, d) for d in (1, 2, 4)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(2)).squeeze(1)


def main():
    torch.manual_seed(0)
    x, life = make_engines(3840)
    model = LifeNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.SmoothL1Loss()
    for epoch in range(2):
        start = time.time()
        for step, idx in enumerate(torch.randperm(len(x)).split(32), 1):
            loss = loss_fn(model(x[idx]), life[idx])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch}: {step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
