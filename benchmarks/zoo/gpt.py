"""Train a GPT of 124M parameters (12 layers, 768 wide, 1024 tokens) on Python source text.

    python gpt.py
    python gpt.py --tiny --steps 20        # a few small layers, for a CPU

The text is the standard library of the Python that runs this. Pairs of bytes are mapped into a
vocabulary of 50257, so that the sizes are those of GPT-2.
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


class TextDataset(Dataset):
    def __init__(self, block, vocab):
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        files = [
            p for p in sorted(stdlib.glob("*.py")) + sorted(stdlib.glob("*/*.py")) if "site-packages" not in p.parts
        ]
        text = b"".join(p.read_bytes() for p in files)[:16_000_000]
        pairs = torch.frombuffer(bytearray(text[: len(text) // 2 * 2]), dtype=torch.uint8).view(-1, 2).long()
        self.tokens = (pairs[:, 0] * 256 + pairs[:, 1]) % vocab
        self.block = block

    def __len__(self):
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, i):
        chunk = self.tokens[i * self.block : (i + 1) * self.block + 1]
        return chunk[:-1], chunk[1:]


class Attention(nn.Module):
    def __init__(self, dim, heads, block, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = self.drop(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.drop(self.proj(y))


class Block(nn.Module):
    def __init__(self, dim, heads, block, dropout):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, block, dropout)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, block, dim, heads, layers, dropout):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(block, dim)
        self.blocks = nn.ModuleList([Block(dim, heads, block, dropout) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.apply(self.init_weights)
        self.head.weight = self.tok.weight

    def init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, x):
        pos = torch.arange(x.size(1), device=x.device)
        h = self.tok(x) + self.pos(pos)
        for block in self.blocks:
            h = block(h)
        return self.head(self.ln(h))


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.vocab, args.block, args.dim, args.heads, args.layers = 50257, 1024, 768, 12, 12
    if args.tiny:
        args.vocab, args.block, args.dim, args.heads, args.layers = 1024, 64, 64, 4, 2
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    dataset = TextDataset(args.block, args.vocab)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = GPT(args.vocab, args.block, args.dim, args.heads, args.layers, args.dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    step, total, start = 0, 0.0, time.perf_counter()
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, args.vocab), y.view(-1))
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
