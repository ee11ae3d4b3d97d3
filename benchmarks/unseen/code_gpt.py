"""Character-level GPT on the Python standard library."""

import argparse
import math
import pathlib
import sysconfig
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, block_size, dim, heads, layers):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(block_size, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tok.weight
        self.register_buffer("positions", torch.arange(block_size), persistent=False)
        for table in (self.tok, self.pos):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(self.positions[: idx.size(1)])
        return self.head(self.ln(self.blocks(x)))


def load_text(max_chars):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = "".join(p.read_text(errors="ignore") for p in sorted(root.glob("*.py"))[:40])
    text = "".join(c for c in text[:max_chars] if c.isascii())
    chars = sorted(set(text))
    lookup = {c: i for i, c in enumerate(chars)}
    return torch.tensor([lookup[c] for c in text]), len(chars)


def get_batch(data, args):
    start = torch.randint(len(data) - args.block_size - 1, (args.batch_size, 1))
    window = data[start + torch.arange(args.block_size + 1)]
    return window[:, :-1], window[:, 1:]


@torch.no_grad()
def estimate(model, data, args, batches=5):
    model.eval()
    total = 0.0
    for _ in range(batches):
        x, y = get_batch(data, args)
        total += F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    model.train()
    return total / batches


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-size", type=int, default=6)
    ap.add_argument("--block-size", type=int, default=128)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--layers", type=int, default=3)
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--eval-every", type=int, default=50)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    torch.manual_seed(1337)
    data, vocab = load_text(600_000)
    cut = int(0.9 * len(data))
    train, val = data[:cut], data[cut:]
    model = GPT(vocab, args.block_size, args.dim, args.heads, args.layers)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 10) * 0.5 * (1 + math.cos(math.pi * s / args.steps))
    )
    began = time.time()
    for step in range(1, args.steps + 1):
        x, y = get_batch(train, args)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % args.eval_every == 0:
            rate = step * args.batch_size * args.block_size / (time.time() - began)
            print(f"step {step} train {loss.item():.3f} val {estimate(model, val, args):.3f} {rate:.0f} char/s")


if __name__ == "__main__":
    main()
