"""Character-level transformer on the sources of the Python standard library."""

import pathlib
import sysconfig

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def load_text(limit=400_000):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    parts, total = [], 0
    for path in sorted(root.glob("*.py")):
        data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        parts.append(data[data < 128])
        total += len(parts[-1])
        if total > limit:
            break
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocab=128, dim=96, heads=4, layers=3, context=64):
        super().__init__()
        self.token = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(context, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        h = self.token(x) + self.position[: x.shape[1]]
        return self.head(self.norm(self.blocks(h)))


def main(steps=240, batch_size=16, context=64):
    torch.manual_seed(0)
    text = load_text()
    window = torch.arange(context + 1)
    model = TinyGPT(context=context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    for step in range(steps):
        start = torch.randint(len(text) - context - 1, (batch_size, 1))
        chunk = text[start + window]
        logits = model(chunk[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
