"""Train a very small GPT, byte by byte, on Python source text: 12 thin layers and short batches.

    python tiny_gpt.py
    python tiny_gpt.py --tiny --steps 20        # fewer layers, for a CPU

The text is the standard library of the Python that runs this.
"""

import argparse
import math
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB = 256


class ByteDataset(Dataset):
    def __init__(self, block):
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(p.read_bytes() for p in sorted(stdlib.glob("*.py")))[:4_000_000]
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.block = block

    def __len__(self):
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, i):
        chunk = self.tokens[i * self.block : (i + 1) * self.block + 1]
        return chunk[:-1], chunk[1:]


class Attention(nn.Module):
    def __init__(self, dim, heads, block):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("mask", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def split_heads(self, x):
        B, T, C = x.shape
        return x.view(B, T, self.heads, C // self.heads).transpose(1, 2)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.split_heads(self.query(x)), self.split_heads(self.key(x)), self.split_heads(self.value(x))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, dim, heads, block):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, block)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class TinyGPT(nn.Module):
    def __init__(self, block, dim, heads, layers):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(block, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads, block) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, x):
        pos = torch.arange(x.size(1), device=x.device)
        h = self.blocks(self.tok(x) + self.pos(pos))
        return self.head(self.ln(h))


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="fewer layers, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.block, args.dim, args.heads, args.layers = 64, 128, 4, 12
    if args.tiny:
        args.layers = 3
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader = DataLoader(ByteDataset(args.block), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = TinyGPT(args.block, args.dim, args.heads, args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters on {device}")

    step, total, start = 0, 0.0, time.perf_counter()
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, VOCAB), y.view(-1))
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
            if step % args.log_every == 0:
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                print(f"step {step} loss {loss.item():.4f} mean {total / step:.4f} {ms:.1f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
