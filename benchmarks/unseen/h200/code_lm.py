"""Causal language model over source-code tokens."""

import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
VOCAB = 8192 if GPU else 256
CONTEXT = 2048 if GPU else 64
WIDTH = 768 if GPU else 32
HEADS = 12 if GPU else 2
LAYERS = 4 if GPU else 2
BATCH = 4 if GPU else 2
STEPS = 400
DROPOUT = 0.1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool)), persistent=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(c // HEADS)
        att = att.masked_fill(~self.mask[:t, :t], float("-inf"))
        att = F.softmax(att, dim=-1)
        att = F.dropout(att, DROPOUT, self.training)
        y = att @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = CausalSelfAttention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CodeLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class TokenStream:
    def __init__(self, device, n=2_000_000):
        self.tokens = torch.randint(0, VOCAB, (n,), device=device)
        self.window = torch.arange(CONTEXT + 1, device=device)
        self.device = device

    def batch(self):
        start = torch.randint(0, len(self.tokens) - CONTEXT - 1, (BATCH, 1), device=self.device)
        chunk = self.tokens[start + self.window]
        return chunk[:, :-1], chunk[:, 1:]


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.set_float32_matmul_precision("high")
    stream = TokenStream(device)
    model = CodeLM().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=GPU)

    for step in range(STEPS):
        ids, targets = stream.batch()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if LIMIT and step + 1 >= LIMIT:
            return


if __name__ == "__main__":
    main()
