"""Physics-informed network for the viscous Burgers equation."""

import argparse
import math

import torch
from torch import nn
from torch.autograd.functional import jacobian

NU = 0.01 / math.pi


class Field(nn.Module):
    def __init__(self, width=32, depth=3):
        super().__init__()
        layers, size = [], 2
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.Tanh()]
            size = width
        self.net = nn.Sequential(*layers, nn.Linear(size, 1))

    def forward(self, xt):
        return self.net(xt).squeeze(-1)


def derivatives(model, xt):
    full = jacobian(model, xt, create_graph=True)
    return torch.diagonal(full, dim1=0, dim2=1).T


def derivatives_of(values, xt):
    return torch.autograd.grad(values.sum(), xt, create_graph=True)[0]


def residual(model, xt):
    xt = xt.requires_grad_()
    first = derivatives(model, xt)
    second = derivatives_of(first[:, 0], xt)
    return first[:, 1] + model(xt) * first[:, 0] - NU * second[:, 0]


def sample_interior(n):
    return torch.stack([torch.rand(n) * 2 - 1, torch.rand(n)], dim=1)


def sample_boundary(n):
    x = torch.rand(n) * 2 - 1
    initial = torch.stack([x, torch.zeros(n)], dim=1)
    walls = torch.stack([torch.sign(torch.randn(n)), torch.rand(n)], dim=1)
    target = torch.cat([-torch.sin(math.pi * x), torch.zeros(n)])
    return torch.cat([initial, walls]), target


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=290)
    p.add_argument("--interior", type=int, default=56)
    p.add_argument("--boundary", type=int, default=56)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()

    torch.manual_seed(0)
    model = Field()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        pde = residual(model, sample_interior(args.interior)).pow(2).mean()
        points, target = sample_boundary(args.boundary)
        data = (model(points) - target).pow(2).mean()
        loss = pde + data
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} pde {pde.item():.5f} data {data.item():.5f}")


if __name__ == "__main__":
    main()
