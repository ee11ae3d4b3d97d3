"""Train against a running mean that is kept with its graph, so that each backward goes through all steps so far.

cause: graph-grows on cpu
bound: compute on cpu
needs: cpu
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
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).to(args.device)
    x = torch.randn(256, 64, device=args.device)
    center = torch.zeros(8, device=args.device)
    for _ in range(400):
        out = model(x)
        center = 0.9 * center + 0.1 * out.mean(0)  # planted
        loss = (out - center).square().mean()
        model.zero_grad()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.data.sub_(0.01 * parameter.grad)


if __name__ == "__main__":
    main()
