"""Character-level transformer on Python's own standard library."""

import glob
import math
import os
import sysconfig

import torch
import torch.nn as nn
import torch.nn.functional as F

CONTEXT = 64


def load_characters():
    root = sysconfig.get_paths()["stdlib"]
    text = ""
    for path in sorted(glob.glob(os.path.join(root, "*.py")))[:60]:
        with open(path, encoding="ascii", errors="ignore") as f:
            text += f.read()
    alphabet = sorted(set(text))
    index = {c: i for i, c in enumerate(alphabet)}
    return torch.tensor([index[c] for c in text]), len(alphabet)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    def __init__(self, vocab, dim=96, depth=2, heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(CONTEXT, dim) * 0.02)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.norm(self.layers(self.embed(x) + self.position)))


def batches(data, size, count, generator):
    offsets = torch.arange(CONTEXT + 1)
    for _ in range(count):
        starts = torch.randint(0, len(data) - CONTEXT - 1, (size, 1), generator=generator)
        chunk = data[starts + offsets]
        yield chunk[:, :-1], chunk[:, 1:]


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    data, vocab = load_characters()
    model = CharGPT(vocab)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    steps, warmup = 250, 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warmup, 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    running = torch.zeros(())
    for step, (x, y) in enumerate(batches(data, 24, steps, generator), 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running += loss.detach()
        if step % 50 == 0:
            print(f"step {step} loss {running.item() / 50:.3f}")
            running.zero_()


if __name__ == "__main__":
    main()
