"""Train on the digits and write the whole history of the run to a file in every step.

cause: host-code
bound: unknown on cpu, launch on cuda
needs: cpu
place: sampled
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

HISTORY = 10_000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32, device=args.device) / 16
    y = torch.tensor(labels, device=args.device)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = [{"step": -step, "rate": 0.1, "examples": step * 256} for step in range(HISTORY)]  # of runs before
    path = Path(tempfile.mkdtemp()) / "history.json"
    for step in range(2000):
        chosen = torch.randint(len(x), (256,), device=args.device)
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append({"step": step, "rate": 0.1, "examples": step * 256})
        path.write_text(json.dumps(history, indent=1))  # planted
    path.unlink()


if __name__ == "__main__":
    main()
