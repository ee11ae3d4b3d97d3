"""Train a mixer that copies its activations into another order before and after each small step of work.

cause: compute on cpu, bandwidth on cuda
bound: bandwidth
needs: cpu
place: line
"""

import argparse

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, channels, depth=4):
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(channels) for _ in range(depth)])

    def forward(self, x):
        for scale in self.scales:
            x = x.transpose(1, 2).contiguous().transpose(0, 1).contiguous().permute(1, 2, 0).contiguous()  # planted
            x = x.transpose(0, 1) * scale
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    side, channels = (512, 512) if args.device == "cuda" else (96, 96)
    model = Mixer(channels).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(side, side, channels, device=args.device)
    for _ in range(2000):
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
