"""Train a small deep model, and in every step ask for the norm of each parameter's gradient on the host.

cause: host-code
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
    args = parser.parse_args()
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*layers).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=args.device == "cuda")
    x = torch.randn(2048, 512, device=args.device)
    target = torch.randn(2048, 512, device=args.device)
    norms = []
    for _ in range(2000):
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        norms.append([parameter.grad.norm().item() for parameter in model.parameters()])  # planted
        optimizer.step()


if __name__ == "__main__":
    main()
