"""Train with an activation that is written out as a chain of elementwise operations.

cause: compute on cpu, bandwidth on cuda
bound: bandwidth
needs: cpu
place: line
"""

import argparse

import torch
from torch import nn


def activation(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))  # planted


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return activation(activation(x * self.scale))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    rows = 65536 if args.device == "cuda" else 512
    model = Net(1024).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(rows, 1024, device=args.device)
    for _ in range(2000):
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
