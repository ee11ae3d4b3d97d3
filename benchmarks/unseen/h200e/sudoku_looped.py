"""One wide transformer block applied over and over to a 9 x 9 board until the empty cells are filled."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
steps = int(os.environ.get("STEPS", 1400))
DIM, HEADS, ROUNDS, BATCH = (3072, 24, 16, 4) if device == "cuda" else (128, 4, 4, 6)


def boards(n, seed=0):
    """Valid solutions: a base pattern with digits, rows, columns and bands permuted."""
    rng = np.random.default_rng(seed)
    r, c = np.meshgrid(np.arange(9), np.arange(9), indexing="ij")
    base = (3 * (r % 3) + r // 3 + c) % 9
    out = np.empty((n, 9, 9), dtype=np.int64)
    for i in range(n):
        rows = np.concatenate([3 * band + rng.permutation(3) for band in rng.permutation(3)])
        cols = np.concatenate([3 * band + rng.permutation(3) for band in rng.permutation(3)])
        out[i] = rng.permutation(9)[base[rows][:, cols]]
    return torch.from_numpy(out.reshape(n, 81) + 1)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_b = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.merge = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        with torch.autocast(device, torch.bfloat16):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm_a(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + self.merge(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.up(self.norm_b(x))))


class Solver(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Embedding(10, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(81, DIM))
        self.block = Block(DIM, HEADS)
        self.norm = nn.LayerNorm(DIM)
        self.read = nn.Linear(DIM, 9)

    def forward(self, puzzle):
        given = self.cell(puzzle) + self.place
        x = given
        for _ in range(ROUNDS):
            x = self.block(x + given)
        return self.read(self.norm(x))


torch.manual_seed(2)
torch.set_float32_matmul_precision("high")
solutions = boards(20000 if device == "cuda" else 500).to(device)
model = Solver().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.05, fused=True)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 200))

begin = time.perf_counter()
for step in range(steps):
    answer = solutions[torch.randint(len(solutions), (BATCH,), device=device)]
    hidden = torch.rand(answer.shape, device=device) < 0.45
    puzzle = answer.masked_fill(hidden, 0)
    logits = model(puzzle)
    each = F.cross_entropy(logits.float().flatten(0, 1), answer.flatten() - 1, reduction="none")
    loss = (each * hidden.flatten()).sum() / hidden.sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    if step % 100 == 0:
        print(f"step {step:5d} loss {loss.item():.3f}")
print(f"{1000 * (time.perf_counter() - begin) / steps:.1f} ms a step")
