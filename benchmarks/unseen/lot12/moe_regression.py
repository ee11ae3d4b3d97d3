"""Regression of tabular sensor data by a network with routed expert layers."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def make_data(n=20_000, features=24):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, features, generator=g)
    regime = (x[:, :3] > 0).long() @ torch.tensor([1, 2, 4])
    w = torch.randn(8, features, generator=g)
    y = torch.sin((x * w[regime]).sum(1)) + 0.1 * torch.randn(n, generator=g)
    return x, y


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class RoutedLayer(nn.Module):
    def __init__(self, dim, hidden, experts, k):
        super().__init__()
        self.k = k
        self.norm = nn.LayerNorm(dim)
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(experts))

    def forward(self, x):
        h = self.norm(x)
        scores = self.router(h)
        top, index = scores.topk(self.k, dim=-1)
        gates = torch.zeros_like(scores).scatter(1, index, top.softmax(dim=-1))
        usage = (gates > 0).float().mean(0)
        balance = (usage * scores.softmax(-1).mean(0)).sum() * len(self.experts)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            out = out + gates[:, i, None] * expert(h)
        return x + out, balance


class Net(nn.Module):
    def __init__(self, features, dim=96, depth=2, experts=8, k=1):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.layers = nn.ModuleList(RoutedLayer(dim, 2 * dim, experts, k) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        x, aux = self.inp(x), 0.0
        for layer in self.layers:
            x, balance = layer(x)
            aux = aux + balance
        return self.out(x).squeeze(1), aux


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=400)
    args = p.parse_args()

    torch.manual_seed(0)
    x, y = make_data()
    model = Net(x.size(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, idx in enumerate(torch.randperm(len(x)).split(args.batch_size)):
            pred, aux = model(x[idx])
            loss = F.mse_loss(pred, y[idx]) + 0.01 * aux
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
