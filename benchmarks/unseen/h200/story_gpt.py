"""GPT-style language model on short stories."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
VOCAB = 16384 if GPU else 128
CONTEXT = 1024 if GPU else 32
WIDTH = 1024 if GPU else 32
HEADS = 16 if GPU else 2
LAYERS = 8 if GPU else 2
BATCH = 16 if GPU else 2
STEPS = 400
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class StoryGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Stories:
    def __init__(self, device, n=4_000_000):
        self.tokens = torch.randint(0, VOCAB, (n,), device=device)
        self.window = torch.arange(CONTEXT + 1, device=device)
        self.device = device

    def batch(self):
        start = torch.randint(0, len(self.tokens) - CONTEXT - 1, (BATCH, 1), device=self.device)
        chunk = self.tokens[start + self.window]
        return chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous()


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.set_float32_matmul_precision("high")
    data = Stories(device)
    net = StoryGPT().to(device)
    model = torch.compile(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=GPU)

    for step in range(STEPS):
        ids, targets = data.batch()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if LIMIT and step + 1 >= LIMIT:
            return


if __name__ == "__main__":
    main()
