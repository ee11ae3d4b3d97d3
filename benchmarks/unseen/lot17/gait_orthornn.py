"""Which of eight gaits does a leg-mounted gyroscope show?  A recurrent net with an orthogonal recurrence."""

import math
import time

import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

T, CHANNELS, GAITS = 36, 6, 8
HIDDEN, BATCH, EPOCHS = 64, 48, 5


def record(n, generator):
    gait = torch.randint(0, GAITS, (n,), generator=generator)
    t = torch.arange(T) / T
    cadence = 1.5 + 0.35 * gait.float()
    asym = 0.1 * (gait % 4).float()
    phase = torch.rand(n, 1, generator=generator) * 2 * math.pi
    base = 2 * math.pi * cadence[:, None] * t + phase
    chans = []
    for c in range(CHANNELS):
        chans.append(torch.sin(base + 0.6 * c) + asym[:, None] * torch.sin((2 + c % 3) * base))
    x = torch.stack(chans, dim=-1)
    return x + 0.3 * torch.randn(x.shape, generator=generator), gait


class ModReLU(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.b = nn.Parameter(torch.empty(features).uniform_(-0.01, 0.01))

    def forward(self, z):
        return torch.sign(z) * torch.relu(z.abs() + self.b)


class OrthoCell(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.inp = nn.Linear(inputs, hidden)
        self.rec = orthogonal(nn.Linear(hidden, hidden, bias=False), orthogonal_map="matrix_exp")
        self.act = ModReLU(hidden)

    def forward(self, x, h):
        return self.act(self.inp(x) + self.rec(h))


class GaitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = OrthoCell(CHANNELS, HIDDEN)
        self.head = nn.Linear(HIDDEN, GAITS)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], HIDDEN)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


def batches(x, y, generator):
    order = torch.randperm(len(x), generator=generator)
    for part in order.split(BATCH):
        yield x[part], y[part]


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    hits = (model(x).argmax(-1) == y).float().mean().item()
    model.train()
    return hits


def main():
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(5)
    x, y = record(4800, gen)
    vx, vy = record(600, gen)
    model = GaitNet()
    rec = list(model.cell.rec.parameters())
    rest = [p for p in model.parameters() if all(p is not q for q in rec)]
    opt_rec = torch.optim.RMSprop(rec, lr=1e-4)
    opt_rest = torch.optim.RMSprop(rest, lr=1e-3)
    steps, began = 0, time.perf_counter()
    for epoch in range(EPOCHS):
        total = 0.0
        for bx, by in batches(x, y, gen):
            loss = nn.functional.cross_entropy(model(bx), by)
            opt_rec.zero_grad()
            opt_rest.zero_grad()
            loss.backward()
            opt_rec.step()
            opt_rest.step()
            total += loss.item() * len(bx)
            steps += 1
        print(f"epoch {epoch}: loss {total / len(x):.4f}, held out {accuracy(model, vx, vy):.3f}")
    spent = time.perf_counter() - began
    print(f"{steps} steps, {spent:.1f} s, {1e3 * spent / steps:.2f} ms a step")


if __name__ == "__main__":
    main()
