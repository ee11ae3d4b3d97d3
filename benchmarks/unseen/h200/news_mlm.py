"""Masked-word pretraining of a small encoder on news sentences."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
VOCAB = 50304 if GPU else 512
MASK_ID = 4
LENGTH = 256 if GPU else 32
WIDTH = 384 if GPU else 32
HEADS = 6 if GPU else 2
LAYERS = 6 if GPU else 2
BATCH = 64 if GPU else 4
STEPS = 500
MASK_RATE = 0.15
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class NewsEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*[EncoderLayer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.decoder = nn.Linear(WIDTH, VOCAB)
        self.decoder.weight = self.tok.weight

    def forward(self, ids, labels):
        x = self.layers(self.tok(ids) + self.pos.weight[: ids.shape[1]])
        hidden = self.norm(x).flatten(0, 1)
        labels = labels.flatten()
        logits = self.decoder(hidden)
        return F.cross_entropy(logits.float(), labels, ignore_index=-100)


class Sentences:
    def __init__(self, device, n=20000):
        self.rows = torch.randint(5, VOCAB, (n, LENGTH), device=device)
        self.device = device

    def batch(self):
        pick = torch.randint(0, len(self.rows), (BATCH,), device=self.device)
        ids = self.rows[pick]
        chosen = torch.rand(ids.shape, device=self.device) < MASK_RATE
        labels = ids.masked_fill(~chosen, -100)
        return ids.masked_fill(chosen, MASK_ID), labels


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.set_float32_matmul_precision("high")
    data = Sentences(device)
    model = NewsEncoder().to(device)
    nn.init.normal_(model.tok.weight, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, fused=GPU)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=STEPS)

    for step in range(STEPS):
        ids, labels = data.batch()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(ids, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} mlm loss {loss.item():.4f}")
        if LIMIT and step + 1 >= LIMIT:
            return


if __name__ == "__main__":
    main()
