"""Train a transformer whose tokens look at those shortly before them: attention by hand, under a mask.

python window.py --tiny
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads, length, window):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        places = torch.arange(length)
        back = places.unsqueeze(1) - places
        self.register_buffer("mask", (back >= 0) & (back < window))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).split(C, 2))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = F.softmax(att.masked_fill(~self.mask[:T, :T], float("-inf")), dim=-1)
        x = x + self.out((att @ v).transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, words, dim, heads, layers, length, window):
        super().__init__()
        self.words, self.places = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads, length, window) for _ in range(layers)])
        self.head = nn.Linear(dim, words)

    def forward(self, tokens):
        return self.head(self.blocks(self.words(tokens) + self.places.weight[: tokens.shape[1]]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    words, dim, heads, layers, rows, length, window = (
        (64, 32, 2, 2, 2, 48, 8) if args.tiny else (512, 768, 12, 3, 8, 4096, 256)
    )
    torch.manual_seed(0)
    model = Model(words, dim, heads, layers, length, window).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = torch.randint(words, (rows, length + 1), device=args.device)
    for step in range(3000):
        with torch.autocast(args.device, torch.bfloat16):
            loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
