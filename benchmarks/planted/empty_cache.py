"""Train a network and give all unused memory back to the driver in every step.

cause: allocator
bound: memory
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
    rows = 8192 if args.device == "cuda" else 64
    model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.ReLU())])
    model = model.to(args.device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    x = torch.randn(rows, 1024, device=args.device, dtype=torch.bfloat16)
    for _ in range(2000):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss
        torch.cuda.empty_cache()  # planted


if __name__ == "__main__":
    main()
