"""Train a wide network in plain fp32.

cause: compute on cpu, no-tensor-cores on cuda
bound: compute
needs: cpu
place: line
"""

import argparse

import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)  # planted: fp32 weights, no autocast, no TF32
            x = torch.relu(x)
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    rows, width, depth = (8192, 4096, 4) if cuda else (256, 768, 3)
    model = Wide(width, depth).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=cuda)
    x = torch.randn(rows, width, device=args.device)
    for _ in range(2000):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
