"""Train on the digits and save a checkpoint in every step.

cause: host-code on cpu
bound: unknown on cpu
needs: cpu
place: sampled
"""

import argparse
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32, device=args.device) / 16
    y = torch.tensor(labels, device=args.device)
    layers = [nn.Linear(64, 128), nn.ReLU()]
    for _ in range(20):
        layers += [nn.Linear(128, 128), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 10)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    for _ in range(2000):
        chosen = torch.randint(len(x), (32,), device=args.device)
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for _ in range(3):  # three copies, to be safe
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)  # planted


if __name__ == "__main__":
    main()
