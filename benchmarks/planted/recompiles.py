"""Train a compiled network on batches of ever another length, each of which is compiled anew.

cause: recompiles
bound: launch
needs: cuda
place: line
"""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, dynamic=False, backend="aot_eager")
    for step in range(args.steps):
        x = torch.randn(32 + step, 64, device=args.device)
        loss = compiled(x).square().mean()  # planted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
