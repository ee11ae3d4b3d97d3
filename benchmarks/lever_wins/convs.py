"""Train a residual convolution net in bfloat16 autocast, images and weights in NCHW order; or of volumes, in float32.

python convs.py --tiny
python convs.py --volumes --tiny
"""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, conv, norm, width, kernel):
        super().__init__()
        self.one = conv(width, width, kernel, padding=kernel // 2, bias=False)
        self.two = conv(width, width, kernel, padding=kernel // 2, bias=False)
        self.norm, self.norm2 = norm(width), norm(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.two(F.relu(self.norm(self.one(x))))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--volumes", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.volumes:
        conv, norm, width, shape, depth, kernel = nn.Conv3d, nn.BatchNorm3d, 40, (6, 1, 40, 56, 56), 3, 5
    else:
        conv, norm, width, shape, depth, kernel = nn.Conv2d, nn.BatchNorm2d, 128, (128, 3, 56, 56), 4, 3
    if args.tiny:
        width, depth, shape = 8, 1, (2, shape[1], *(8 for _ in shape[2:]))
    blocks = [Block(conv, norm, width, kernel) for _ in range(depth)]
    pool = nn.AdaptiveAvgPool3d(1) if args.volumes else nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(conv(shape[1], width, 3, padding=1), *blocks, pool, nn.Flatten(), nn.Linear(width, 10))
    model = model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.randn(shape, device=args.device)
    labels = torch.randint(10, shape[:1], device=args.device)
    for step in range(3000):
        mixed = torch.autocast(args.device, torch.bfloat16) if not args.volumes else contextlib.nullcontext()
        with mixed:
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
