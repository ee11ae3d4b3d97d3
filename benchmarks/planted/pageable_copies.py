"""Train a small head on large feature maps that are copied from pageable memory in every step.

cause: h2d
bound: h2d
needs: cuda
place: line
"""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    rows = 16384 if args.device == "cuda" else 256
    batches = [torch.randn(rows, 4096) for _ in range(4)]
    target = torch.randn(rows, 16, device=args.device)
    model = nn.Linear(4096, 16).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(2000):
        x = batches[step % len(batches)].to(args.device)  # planted
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
