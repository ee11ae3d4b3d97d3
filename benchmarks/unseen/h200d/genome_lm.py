"""Next-base language model on long DNA windows."""

import math
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 16
    context: int = 6144
    dim: int = 768
    heads: int = 12
    layers: int = 5
    batch: int = 3
    steps: int = 320
    lr: float = 4e-4
    warmup: int = 50


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.out = nn.Linear(cfg.dim, cfg.dim, bias=False)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.attn = Attention(cfg)
        self.up = nn.Linear(cfg.dim, 4 * cfg.dim, bias=False)
        self.down = nn.Linear(4 * cfg.dim, cfg.dim, bias=False)

    def forward(self, x, mask):
        x = x + self.attn(self.norm1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GenomeLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.token = nn.Embedding(cfg.vocab, cfg.dim)
        self.place = nn.Embedding(cfg.context, cfg.dim)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        self.register_buffer("mask", torch.ones(cfg.context, cfg.context, dtype=torch.bool).tril(), persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.token(ids) + self.place.weight[:t]
        mask = self.mask[:t, :t]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def windows(genome, cfg):
    offsets = torch.arange(cfg.context + 1, device=genome.device)
    while True:
        start = torch.randint(len(genome) - cfg.context - 1, (cfg.batch, 1), device=genome.device)
        piece = genome[start + offsets]
        yield piece[:, :-1], piece[:, 1:]


def schedule(step, cfg):
    if step < cfg.warmup:
        return step / cfg.warmup
    return 0.5 * (1 + math.cos(math.pi * (step - cfg.warmup) / (cfg.steps - cfg.warmup)))


def main():
    cfg = Config()
    torch.manual_seed(11)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    motif = torch.randint(4, (997,), device=device)
    genome = motif.repeat(8000)
    noise = torch.rand(len(genome), device=device) < 0.1
    genome = torch.where(noise, torch.randint_like(genome, 4), genome)
    model = GenomeLM(cfg).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), fused=True)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: schedule(s + 1, cfg))
    start = time.time()
    for step, (x, y) in zip(range(1, cfg.steps + 1), windows(genome, cfg)):
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        plan.step()
        if step % 100 == 0:
            print(f"{step} {loss.item() / math.log(2):.4f} bits {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
