"""Denoising model over Python source bytes with kernel feature-map attention."""

import argparse
import pathlib
import sysconfig

import torch
import torch.nn.functional as F
from torch import nn


def load_bytes(limit=400_000):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = b""
    for path in sorted(root.glob("*.py")):
        text += path.read_bytes()
        if len(text) > limit:
            break
    return torch.frombuffer(bytearray(text[:limit]), dtype=torch.uint8).long()


def feature_map(x):
    return F.elu(x) + 1


class KernelAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = feature_map(qkv[0]), feature_map(qkv[1]), qkv[2]
        weights = q @ k.transpose(-1, -2)
        out = weights @ v
        norm = (q * k.sum(dim=2, keepdim=True)).sum(-1, keepdim=True)
        out = out / (norm + 1e-6)
        return self.proj(out.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = KernelAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class ByteModel(nn.Module):
    def __init__(self, dim=64, heads=4, depth=2, length=512):
        super().__init__()
        self.tok = nn.Embedding(257, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, 256)

    def forward(self, ids):
        return self.head(self.blocks(self.tok(ids) + self.pos))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=290)
    p.add_argument("--batch-size", type=int, default=2)
    p.add_argument("--length", type=int, default=512)
    args = p.parse_args()

    torch.manual_seed(0)
    data = load_bytes()
    model = ByteModel(length=args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    offsets = torch.arange(args.length)
    for step in range(args.steps):
        start = torch.randint(len(data) - args.length, (args.batch_size, 1))
        target = data[start + offsets]
        corrupt = torch.rand(target.shape) < 0.2
        logits = model(target.masked_fill(corrupt, 256))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
