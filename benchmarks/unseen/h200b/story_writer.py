"""A small causal language model on a corpus of children's stories."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
VOCAB = 8192 if CUDA else 200
CONTEXT = 1024 if CUDA else 32
WIDTH = 768 if CUDA else 32
HEADS = 12 if CUDA else 2
LAYERS = 12 if CUDA else 2
BATCH = 16 if CUDA else 2
CORPUS = 20_000_000 if CUDA else 5000
STEPS = 360
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class StoryModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.register_buffer("index", torch.arange(CONTEXT), persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(self.index)
        return self.head(self.norm(self.blocks(x)))


def get_batch(corpus, window):
    start = torch.randint(len(corpus) - CONTEXT - 1, (BATCH, 1), device=device)
    chunk = corpus[start + window].long()
    return chunk[:, :-1], chunk[:, 1:]


def main():
    torch.manual_seed(0)
    corpus = torch.randint(VOCAB, (CORPUS,), dtype=torch.int32, device=device)
    window = torch.arange(CONTEXT + 1, device=device)
    model = StoryModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=CUDA)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-4, total_steps=STEPS)
    began = time.time()
    for step in range(1, STEPS + 1):
        x, y = get_batch(corpus, window)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - began:.1f}s", flush=True)
        if LIMIT and step >= LIMIT:
            print("loss", loss.item())
            return


if __name__ == "__main__":
    main()
