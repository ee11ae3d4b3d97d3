"""Train a stack of residual blocks and wait for the device to time each step.

cause: sync
bound: sync
needs: cuda
place: line
"""

import argparse
import time

import torch
from torch import nn


class Block(nn.Module):
    """About as much arithmetic as memory traffic on an H100."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + nn.functional.gelu(self.linear(x))


def ask_for_rate(step):
    """The learning rate comes from a scheduler elsewhere, which takes a moment to answer."""
    time.sleep(0.026)
    return 1e-3 / (1 + step)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    rows, width, depth = (131072, 1024, 16) if cuda else (64, 64, 2)
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(width) for _ in range(depth)]).to(args.device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=cuda)
    x = torch.randn(rows, width, device=args.device, dtype=torch.bfloat16)
    target = torch.randn(rows, device=args.device, dtype=torch.bfloat16)
    times = []
    for step in range(2000):
        output = model(x).mean(1)
        losses = (output - target).square()
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()  # planted
        times.append(time.perf_counter())
        optimizer.param_groups[0]["lr"] = ask_for_rate(step)


if __name__ == "__main__":
    main()
