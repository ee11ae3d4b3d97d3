"""Train a decoder on folk tunes written as text."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
SYMBOLS = 2048 if GPU else 100
CONTEXT = 1024 if GPU else 32
BATCH = 16 if GPU else 2
WIDTH = 1024 if GPU else 64
HEADS = 16 if GPU else 4
LAYERS = 8 if GPU else 2
TUNES = 8_000_000 if GPU else 5000
STEPS = 450 if GPU else 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TuneModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.symbols(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def get_batch(tunes, offsets):
    start = torch.randint(0, TUNES - CONTEXT - 1, (BATCH, 1), device=device)
    window = tunes[start + offsets]
    return window[:, :-1], window[:, 1:]


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    tunes = torch.randint(0, SYMBOLS, (TUNES,), device=device)
    offsets = torch.arange(CONTEXT + 1, device=device)
    model = TuneModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    for step in range(STEPS):
        tokens, targets = get_batch(tunes, offsets)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
