"""Train a wide network as it should be: bf16 on the tensor cores, everything on the device, no waits.

cause: compute
bound: compute
needs: cpu
place: none
"""

import argparse

import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    rows, width, depth = (16384, 8192, 4) if cuda else (256, 768, 3)
    model = Wide(width, depth).to(args.device, torch.bfloat16 if cuda else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(rows, width, device=args.device, dtype=torch.bfloat16 if cuda else torch.float32)
    for _ in range(2000):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
