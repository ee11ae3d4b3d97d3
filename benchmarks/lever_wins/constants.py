"""Train a small residual network whose forward makes tensors of Python's numbers: scales, and columns in an order.

python constants.py --tiny
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.order = [at ^ 1 for at in range(width)]

    def forward(self, x):
        scale = torch.tensor([0.5, 2.0], device=x.device)
        y = self.norm(x)[:, self.order]
        return x + scale[0] * self.down(F.gelu(scale[1] * self.up(y)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    width, depth, rows = (16, 2, 8) if args.tiny else (512, 12, 2048)
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(width) for _ in range(depth)], nn.Linear(width, 10)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(rows, width, device=args.device)
    labels = torch.randint(10, (rows,), device=args.device)
    for step in range(3000):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
