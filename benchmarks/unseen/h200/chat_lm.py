"""Chat language model trained on contexts that grow during the run."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
VOCAB = 4096 if GPU else 128
WIDTH = 512 if GPU else 32
HEADS = 8 if GPU else 2
LAYERS = 2
BATCH = 48 if GPU else 2
STEPS = 360
FIRST_CONTEXT, GROW_BY, GROW_EVERY = (128, 48, 45) if GPU else (16, 8, 2)
MAX_CONTEXT = 512
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch._dynamo.config.recompile_limit = 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class ChatLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Embedding(MAX_CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Dialogues:
    def __init__(self, device, n=1_000_000):
        self.tokens = torch.randint(0, VOCAB, (n,), device=device)
        self.device = device

    def batch(self, context):
        start = torch.randint(0, len(self.tokens) - context - 1, (BATCH, 1), device=self.device)
        chunk = self.tokens[start + torch.arange(context + 1, device=self.device)]
        return chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous()


def context_at(step):
    return min(MAX_CONTEXT, FIRST_CONTEXT + GROW_BY * (step // GROW_EVERY))


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.set_float32_matmul_precision("high")
    data = Dialogues(device)
    net = ChatLM().to(device)
    model = torch.compile(net, dynamic=False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.1, fused=GPU)

    for step in range(STEPS):
        context = context_at(step)
        ids, targets = data.batch(context)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} context {context} loss {loss.item():.4f}")
        if LIMIT and step + 1 >= LIMIT:
            return


if __name__ == "__main__":
    main()
