"""Train a decoder language model on tokenised recipes."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
VOCAB = 8192 if CUDA else 256
CONTEXT = 512 if CUDA else 32
DIM, HEADS, DEPTH = (768, 12, 8) if CUDA else (64, 4, 2)
BATCH = 32 if CUDA else 4
WORKERS = 4 if CUDA else 0
STEPS = 700
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


class Recipes(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(11)
        self.count = count
        self.tokens = (rng.random(5_000_000) ** 3 * VOCAB).astype(np.int64)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        begin = (index * 104729) % (len(self.tokens) - CONTEXT - 1)
        return torch.from_numpy(self.tokens[begin : begin + CONTEXT + 1])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class RecipeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        self.position = nn.Parameter(torch.randn(CONTEXT, DIM) * 0.02)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.position)))


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Recipes(BATCH * STEPS), BATCH, shuffle=True, num_workers=WORKERS, pin_memory=CUDA, drop_last=True
    )
    model = RecipeModel().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    total = torch.zeros((), device=device)
    for step, batch in enumerate(loader, 1):
        batch = batch.to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {total.item() / 100:.4f}", flush=True)
            total.zero_()
        if step == LIMIT_STEPS:
            break


if __name__ == "__main__":
    main()
