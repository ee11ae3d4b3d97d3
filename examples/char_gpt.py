"""Train a small character-level GPT on the sources of Python's standard library.

    python examples/char_gpt.py
    python examples/char_gpt.py --steps 5000 --layers 6 --dim 384 --block 256 --batch-size 64 --device cuda

The text is every top-level .py file of the standard library of the Python that runs this.
At the end the model writes a few lines of its own.
"""

import argparse
import math
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class CharDataset(Dataset):
    def __init__(self, text, block):
        self.chars = sorted(set(text))
        self.stoi = {c: i for i, c in enumerate(self.chars)}
        self.data = torch.tensor([self.stoi[c] for c in text])
        self.block = block

    def __len__(self):
        return (len(self.data) - 1) // self.block

    def __getitem__(self, i):
        chunk = self.data[i * self.block : (i + 1) * self.block + 1]
        return chunk[:-1], chunk[1:]


class Attention(nn.Module):
    def __init__(self, dim, heads, block, dropout):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, x):
        B, T, C = x.shape
        shape = (B, T, self.heads, C // self.heads)
        q = self.query(x).view(shape).transpose(1, 2)
        k = self.key(x).view(shape).transpose(1, 2)
        v = self.value(x).view(shape).transpose(1, 2)
        att = q @ k.transpose(-2, -1) / math.sqrt(C // self.heads)
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


class CharGPT(nn.Module):
    def __init__(self, vocab, block, dim, heads, layers, dropout):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(block, dim)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(dim, heads, block, dropout) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        pos = torch.arange(x.shape[1], device=x.device)
        h = self.blocks(self.drop(self.tok(x) + self.pos(pos)))
        return self.head(self.ln(h))


@torch.no_grad()
def sample(model, dataset, device, length=200, prompt="def "):
    model.eval()
    x = torch.tensor([[dataset.stoi[c] for c in prompt]], device=device)
    for _ in range(length):
        probs = F.softmax(model(x[:, -dataset.block :])[:, -1], dim=-1)
        x = torch.cat([x, torch.multinomial(probs, 1)], dim=1)
    return "".join(dataset.chars[i] for i in x[0].tolist())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(1337)
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    text = "\n".join(p.read_text(encoding="utf-8", errors="ignore") for p in sorted(stdlib.glob("*.py")))
    dataset = CharDataset(text, args.block)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    model = CharGPT(len(dataset.chars), args.block, args.dim, args.heads, args.layers, dropout=0.1).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    print(f"{len(text)} characters, {sum(p.numel() for p in model.parameters())} parameters, on {args.device}")

    step, total, start = 0, 0.0, time.time()
    model.train()
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(args.device), y.to(args.device)
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            total += loss.item()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f} mean {total / step:.4f} time {time.time() - start:.1f}s")
            if step >= args.steps:
                break

    print(sample(model, dataset, args.device))


if __name__ == "__main__":
    main()
