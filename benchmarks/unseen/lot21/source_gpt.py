"""A small GPT on Python's own sources, byte level, one GPU."""
import glob
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
DIM = 1024 if CUDA else 32
LAYERS = 8 if CUDA else 2
HEADS = 8 if CUDA else 2
CONTEXT = 512 if CUDA else 32
BATCH = 64 if CUDA else 4
STEPS = 600 if CUDA else 4
WARMUP = 100
PEAK_LR = 4e-4


def read_sources(limit):
    data = bytearray()
    root = os.path.dirname(os.__file__)
    for path in sorted(glob.glob(os.path.join(root, "*.py")) + glob.glob(os.path.join(root, "*", "*.py"))):
        with open(path, "rb") as f:
            data += f.read() + b"\0"
        if len(data) > limit:
            break
    return torch.frombuffer(data, dtype=torch.uint8)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, DIM))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(DIM), Attention()
        self.ln2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM, bias=False), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * DIM, DIM, bias=False))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(256, DIM)
        self.pos = nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.ln = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 256, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos.weight
        logits = self.head(self.ln(self.blocks(x)))
        return F.cross_entropy(logits.float().view(-1, 256), targets.reshape(-1))


def lr_at(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, STEPS - WARMUP)))


def main():
    torch.manual_seed(0)
    data = read_sources(15_000_000 if CUDA else 100_000).to(device)
    model = GPT().to(device)
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                            lr=PEAK_LR, betas=(0.9, 0.95), fused=CUDA)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_at)
    step_model = torch.compile(model) if CUDA else model
    span = torch.arange(CONTEXT + 1, device=device)
    total = torch.zeros((), device=device)
    start = time.time()
    for step in range(1, STEPS + 1):
        at = torch.randint(0, len(data) - CONTEXT - 1, (BATCH, 1), device=device)
        chunk = data[at + span].long()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = step_model(chunk[:, :-1], chunk[:, 1:])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        total += loss.detach()
        if step % 50 == 0 or step == STEPS:
            print(f"step {step} loss {total.item() / 50:.4f} {(time.time() - start):.1f}s", flush=True)
            total.zero_()


if __name__ == "__main__":
    main()
