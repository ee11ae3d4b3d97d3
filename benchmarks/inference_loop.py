"""A loop that only infers, as users write them: tokens one by one through a small transformer whose keys and values are
kept in buffers of fixed size, so the device waits for launches.

    hotlap tune --only graph-forward python benchmarks/inference_loop.py
"""

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Attention of one token to those before it."""

    def __init__(self, dim: int, heads: int, batch: int, length: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, heads, length, dim // heads))

    def forward(self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(rows, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(rows, tokens, dim))


class Block(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, dim: int, heads: int, batch: int, length: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, batch, length)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.one(x), position, mask)
        return x + self.mlp(self.two(x))


class Decoder(nn.Module):
    """Logits of the next token."""

    def __init__(self, vocab: int = 4096, dim: int = 256, heads: int = 8, layers: int = 6, batch: int = 8) -> None:
        super().__init__()
        self.length, self.batch = 256, batch
        self.tokens, self.places = nn.Embedding(vocab, dim), nn.Embedding(self.length, dim)
        self.blocks = nn.ModuleList([Block(dim, heads, batch, self.length) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)
        self.register_buffer("order", torch.arange(self.length))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        mask = position.unsqueeze(1) >= self.order
        h = self.tokens(token) + self.places(position)
        for block in self.blocks:
            h = block(h, position, mask)
        return self.head(self.norm(h[:, -1]))


def decode(model: Any, device: str, steps: int) -> torch.Tensor:
    """Greedy tokens of all rows, one step a token."""
    token = torch.arange(model.batch, device=device).unsqueeze(1)
    found = []
    for step in range(steps):
        position = torch.tensor([step % model.length], device=device)
        token = model(token, position).argmax(-1, keepdim=True)
        found.append(token)
    return torch.cat(found, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Decoder().to(device).eval()
    start = time.perf_counter()
    with torch.no_grad():
        print(int(decode(model, device, args.steps).sum()))
    print(f"{(time.perf_counter() - start) / args.steps * 1000:.2f} ms a step")


if __name__ == "__main__":
    main()
