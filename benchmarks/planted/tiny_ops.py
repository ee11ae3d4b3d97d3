"""Train a deep and narrow network, every operation of which is small.

cause: launch
bound: launch
needs: cuda
place: line
"""

import argparse

import torch
from torch import nn


class Deep(nn.Module):
    def __init__(self, width=32, depth=150):
        super().__init__()
        self.scales = nn.ParameterList([torch.full((width,), 0.5) for _ in range(depth)])

    def forward(self, x):
        for scale in self.scales:
            x = x + torch.tanh(x * scale).sigmoid() - torch.relu(x).cos() * 0.01  # planted
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    model = Deep().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    x = torch.randn(16, 32, device=args.device)
    for _ in range(2000):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
