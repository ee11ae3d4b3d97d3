"""Character-level GPT on the sources of the Python standard library."""

import argparse
import glob
import os
import time

import numpy as np
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
    def __init__(self, vocab, dim, layers, heads, context):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.register_buffer("positions", torch.arange(context), persistent=False)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(self.positions[: idx.shape[1]])
        return self.head(self.ln(self.blocks(x)))


def load_corpus(max_chars):
    parts, total = [], 0
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, encoding="latin-1") as f:
            parts.append(f.read())
        total += len(parts[-1])
        if total > max_chars:
            break
    raw = np.frombuffer("".join(parts).encode("latin-1"), dtype=np.uint8)
    chars, ids = np.unique(raw, return_inverse=True)
    return torch.from_numpy(ids.astype(np.int64)), len(chars)


def get_batch(data, batch, context):
    start = torch.randint(len(data) - context - 1, (batch, 1))
    window = data[start + torch.arange(context + 1)]
    return window[:, :-1], window[:, 1:]


@torch.no_grad()
def estimate_loss(model, data, args, batches=3):
    model.eval()
    total = torch.zeros(())
    for _ in range(batches):
        x, y = get_batch(data, args.batch, args.context)
        total += F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    model.train()
    return total.item() / batches


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=192)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--heads", type=int, default=6)
    ap.add_argument("--context", type=int, default=96)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    torch.manual_seed(1337)
    data, vocab = load_corpus(1_000_000)
    split = int(0.95 * len(data))
    train_data, val_data = data[:split], data[split:]
    model = GPT(vocab, args.dim, args.layers, args.heads, args.context)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    print(f"{len(data)} characters, {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")

    begin = time.perf_counter()
    for step in range(1, args.steps + 1):
        x, y = get_batch(train_data, args.batch, args.context)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 40 == 0:
            print(f"step {step}: train {loss.item():.3f} val {estimate_loss(model, val_data, args):.3f}")
    print(f"{(time.perf_counter() - begin) / args.steps * 1e3:.1f} ms/step")


if __name__ == "__main__":
    main()
