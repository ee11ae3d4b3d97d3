"""Attention as nanoGPT has it: fused where torch has that, and written out beside it."""

import argparse

import torch
import torch.nn.functional as F
from common import batches, end, said
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--slow", action="store_true", help="attention by hand is what runs")
parser.add_argument("--later", action="store_true", help="by hand from the second forward on")
parser.add_argument("--frozen", action="store_true", help="the attention is not trained, and runs without gradients")
parser.add_argument("--hidden", action="store_true", help="under a checkpoint, of which autograd shows nothing")
parser.add_argument("--infer", action="store_true")
args = parser.parse_args()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.flash = hasattr(F, "scaled_dot_product_attention") and not args.slow
        self.calls = 0

    def forward(self, x):
        q, k, v = self.qkv(x).split(4, dim=-1)
        self.calls += 1
        if self.flash and not (args.later and self.calls > 1):
            return F.scaled_dot_product_attention(q, k, v)
        weights = F.softmax(q @ k.transpose(-2, -1) / 2, dim=-1)
        return weights @ v


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.last = Attention(), nn.Linear(4, 1)

    def forward(self, x):
        x = x[None]
        if args.hidden:
            x = checkpoint(self.attention, x, use_reentrant=True)
        else:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not args.frozen):
                x = self.attention(x)
        return self.last(x)[0]


def main():
    model = Net()
    optimizer = None if args.infer else torch.optim.SGD(model.parameters(), 0.01)
    with torch.set_grad_enabled(not args.infer):
        for x, y in batches(24):
            x.requires_grad_(args.hidden)
            loss = said(F.mse_loss(model(x), y))
            if optimizer is not None:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    end(model)


if __name__ == "__main__":
    main()
