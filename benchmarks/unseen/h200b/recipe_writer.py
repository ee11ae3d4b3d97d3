"""Train a small language model that continues cooking recipes."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
VOCAB = 50304 if GPU else 300
CONTEXT = 512 if GPU else 32
BATCH = 16 if GPU else 2
WIDTH = 384 if GPU else 64
LAYERS = 4 if GPU else 2
HEADS = 6 if GPU else 4
CORPUS = 4_000_000 if GPU else 5000
STEPS = 700 if GPU else 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places[: tokens.size(1)]
        return self.head(self.norm(self.blocks(x)))


def token_loss(logits, targets):
    probs = torch.softmax(logits, dim=-1)
    wanted = F.one_hot(targets, VOCAB).float()
    log_probs = torch.log(probs + 1e-9)
    return -(wanted * log_probs).sum(dim=-1).mean()


def get_batch(corpus):
    start = torch.randint(0, CORPUS - CONTEXT - 1, (BATCH, 1), device=device)
    window = corpus[start + torch.arange(CONTEXT + 1, device=device)]
    return window[:, :-1], window[:, 1:]


def main():
    torch.manual_seed(0)
    corpus = torch.randint(0, VOCAB, (CORPUS,), device=device)
    model = Writer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    for step in range(STEPS):
        tokens, targets = get_batch(corpus)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens)
            loss = token_loss(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
