"""Intent classifier for support tickets (hashed words, transformer encoder)."""

import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VOCAB, INTENTS, MAX_LEN = 30_000, 24, 512
BATCH, STEPS = 128, 400


def write_tickets(count, rng):
    words = [f"w{i}" for i in range(3000)]
    intents = rng.integers(INTENTS, size=count)
    lengths = np.clip(rng.lognormal(3.3, 0.45, size=count), 5, 120).astype(int)
    texts = []
    for intent, length in zip(intents, lengths):
        picks = rng.integers(0, 3000, size=length)
        picks[: length // 4] = intent * 100 + picks[: length // 4] % 100
        texts.append(" ".join(words[p] for p in picks))
    return texts, intents


class Tokenizer:
    def __init__(self):
        self.cache = {}

    def encode(self, text):
        ids = []
        for word in text.split():
            if word not in self.cache:
                self.cache[word] = zlib.crc32(word.encode()) % (VOCAB - 1) + 1
            ids.append(self.cache[word])
        return np.array(ids[:MAX_LEN], dtype=np.int64)


def collate(rows):
    ids = np.zeros((len(rows), MAX_LEN), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return torch.from_numpy(ids)


def batches(rows, labels, device, rng):
    while True:
        pick = rng.integers(len(rows), size=BATCH)
        ids = collate([rows[p] for p in pick])
        y = torch.from_numpy(labels[pick])
        if device == "cuda":
            ids, y = ids.pin_memory(), y.pin_memory()
        yield ids.to(device, non_blocking=True), y.to(device, non_blocking=True)


class Encoder(nn.Module):
    def __init__(self, dim=512, heads=8, layers=6):
        super().__init__()
        self.heads = heads
        self.word = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.place = nn.Parameter(torch.randn(MAX_LEN, dim) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * layers))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(layers)
        )
        self.head = nn.Linear(dim, INTENTS)

    def forward(self, ids):
        b, t = ids.shape
        real = ids > 0
        x = self.word(ids) + self.place[:t]
        mask = real[:, None, None, :]
        for i, (qkv, out, mlp) in enumerate(zip(self.qkv, self.out, self.mlp)):
            q, k, v = qkv(self.norms[2 * i](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + out(y.transpose(1, 2).reshape(b, t, -1))
            x = x + mlp(self.norms[2 * i + 1](x))
        weight = real.unsqueeze(-1).to(x.dtype)
        return self.head((x * weight).sum(1) / weight.sum(1))


def main():
    rng = np.random.default_rng(2)
    torch.manual_seed(2)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    texts, labels = write_tickets(12_000, rng)
    tokenizer = Tokenizer()
    rows = [tokenizer.encode(text) for text in texts]
    model = Encoder().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    start = time.time()
    for step, (ids, y) in zip(range(1, STEPS + 1), batches(rows, labels, device, rng)):
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(ids), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
