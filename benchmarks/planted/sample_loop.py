"""Train on pictures that are shifted one by one in a Python loop of small ops.

cause: host-code on cpu, launch on cuda
bound: input on cpu, launch on cuda
needs: cpu
place: line
"""

import argparse

import torch
from torch import nn


def shifted(images, shifts):
    out = []
    for image, (down, right) in zip(images, shifts):
        out.append(image.roll((down, right), (1, 2)))  # planted
    return torch.stack(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    images = torch.rand(1024, 1, 16, 16, device=args.device)
    labels = torch.randint(10, (1024,), device=args.device)
    shifts = torch.randint(-2, 3, (1024, 2)).tolist()
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2000):
        batch = shifted(images, shifts)
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
