"""Causal language model over nucleotide windows; the last window of a contig is shorter and padded."""

import argparse
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

PAD = 4
ON_GPU = torch.cuda.is_available()


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class GenomeLM(nn.Module):
    def __init__(self, length, dim, heads, depth):
        super().__init__()
        self.embed = nn.Embedding(5, dim)
        self.position = nn.Parameter(0.02 * torch.randn(length, dim))
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 5)
        self.register_buffer("causal", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, tokens):
        t = tokens.shape[1]
        valid = tokens != PAD
        mask = self.causal[None, None, :t, :t] & valid[:, None, None, :]
        x = self.embed(tokens) + self.position[:t]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def windows(count, length):
    """Repeats of a few motifs in random sequence; one window in ten ends early."""
    g = torch.Generator().manual_seed(5)
    sequence = torch.randint(0, 4, (count, length + 1), generator=g)
    motif = torch.randint(0, 4, (24,), generator=g)
    for start in range(0, length - 200, 160):
        sequence[:, start : start + 24] = motif
    short = torch.randint(length // 2, length, (count // 10,), generator=g)
    for row, end in enumerate(short.tolist()):
        sequence[row * 10, end:] = PAD
    return sequence


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 550)))
    p.add_argument("--batch", type=int, default=4 if ON_GPU else 2)
    p.add_argument("--length", type=int, default=4096 if ON_GPU else 256)
    p.add_argument("--dim", type=int, default=768 if ON_GPU else 96)
    p.add_argument("--depth", type=int, default=8 if ON_GPU else 2)
    args = p.parse_args()
    device = "cuda" if ON_GPU else "cpu"
    torch.manual_seed(1)
    data = windows(1000, args.length).to(device)
    model = GenomeLM(args.length, args.dim, args.dim // 64 or 1, args.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        rows = data[torch.randint(len(data), (args.batch,), device=device)]
        inputs, targets = rows[:, :-1], rows[:, 1:]
        with torch.autocast(device, torch.bfloat16):
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == args.steps:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / args.steps:.1f} ms a step")


if __name__ == "__main__":
    main()
