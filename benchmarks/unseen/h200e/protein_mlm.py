"""Masked residue modelling on protein-like sequences with a wide encoder."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = int(os.environ.get("STEPS", 800))
LENGTH, BATCH, DIM, HEADS, DEPTH = (512, 32, 1536, 24, 6) if DEVICE == "cuda" else (64, 4, 64, 4, 2)
RESIDUES, MASK, IGNORE = 20, 20, -100


def proteins(n):
    """Sequences from a random second-order Markov chain, stored as bytes."""
    chain = torch.softmax(2.0 * torch.randn(RESIDUES, RESIDUES, RESIDUES, device=DEVICE), -1)
    out = torch.randint(0, RESIDUES, (n, LENGTH), device=DEVICE)
    for i in range(2, LENGTH):
        out[:, i] = torch.multinomial(chain[out[:, i - 2], out[:, i - 1]], 1).squeeze(1)
    return out.to(torch.uint8)


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class ProteinEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.residue = nn.Embedding(RESIDUES + 1, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        self.layers = nn.Sequential(*[EncoderLayer() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, RESIDUES)

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.residue(tokens) + self.place)))


def batches(data):
    while True:
        tokens = data[torch.randint(len(data), (BATCH,), device=DEVICE)].long()
        chosen = torch.rand(tokens.shape, device=DEVICE) < 0.15
        yield tokens.masked_fill(chosen, MASK), tokens.masked_fill(~chosen, IGNORE)


def main():
    torch.manual_seed(6)
    torch.set_float32_matmul_precision("high")
    model = ProteinEncoder().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100))
    stream = batches(proteins(8000 if DEVICE == "cuda" else 100))
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        tokens, labels = next(stream)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS:
            print(f"step {step} loss {loss.item():.3f}")
    print(f"{1000 * (time.perf_counter() - start) / STEPS:.1f} ms a step")


if __name__ == "__main__":
    main()
