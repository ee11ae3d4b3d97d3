"""Train a compiled network whose layers tell how far they are, which ends the graph at each of them.

cause: graph-break
bound: launch
needs: cuda
place: line
"""

import argparse
import sys

import torch
from torch import nn


class Told(nn.Module):
    def __init__(self, width=64, depth=60):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) + x
            print("layer", number, file=sys.stderr, end="\r")  # planted
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    model = Told().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    compiled = torch.compile(model, backend="inductor" if args.device == "cuda" else "aot_eager")
    x = torch.randn(32, 64, device=args.device)
    for _ in range(2000):
        loss = compiled(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
