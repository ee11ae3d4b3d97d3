"""Train a bf16 network whose width no tile of the tensor cores fits.

cause: compute
bound: compute
needs: cuda
place: line
"""

import argparse

import torch
from torch import nn

WIDTH = 4001  # 4096 would be faster


class Odd(nn.Module):
    def __init__(self, width, depth=4):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)  # planted
            x = torch.relu(x)
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    rows, width = (16384, WIDTH) if cuda else (64, 101)
    model = Odd(width).to(args.device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=cuda)
    x = torch.randn(rows, width, device=args.device, dtype=torch.bfloat16)
    for _ in range(2000):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
