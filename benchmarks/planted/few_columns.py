"""Train with scores of all classes, of which eleven for each row are used.

cause: few-columns
bound: compute
needs: cpu
place: line
"""

import argparse

import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(128, 256), nn.GELU()), nn.Linear(256, 20_000)

    def forward(self, x):
        return self.head(self.body(x))  # planted


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Ranker().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = 256 if args.device == "cpu" else 8192
    x = torch.randn(rows, 128, device=args.device)
    items = torch.randint(20_000, (rows, 11), device=args.device)
    first = torch.zeros(rows, dtype=torch.long, device=args.device)
    for _ in range(2000):
        loss = nn.functional.cross_entropy(model(x).gather(1, items), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
