import os

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
VOCAB = 2048
CONTEXT = 1024 if ON_GPU else 32
DIM = 1024 if ON_GPU else 64
HEADS = 16 if ON_GPU else 4
LAYERS = 8 if ON_GPU else 2
BATCH = 16 if ON_GPU else 2
STEPS = 450
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


def synth_corpus(length):
    torch.manual_seed(6)
    motif = torch.randint(VOCAB, (4096,), device=device)
    start = torch.randint(4096, (length // 64,), device=device)
    index = (start[:, None] + torch.arange(64, device=device)) % 4096
    return motif[index].reshape(-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.norm2 = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class MelodyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, DIM))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = (self.embed(tokens) + self.position).to(torch.bfloat16)
        return self.head(self.norm(self.blocks(x)))


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    corpus = synth_corpus(4_000_000 if ON_GPU else 20_000)
    model = MelodyLM().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=ON_GPU)
    reach = torch.arange(CONTEXT + 1, device=device)
    running = torch.zeros((), device=device)
    for step in range(1, STEPS + 1):
        start = torch.randint(len(corpus) - CONTEXT - 1, (BATCH, 1), device=device)
        window = corpus[start + reach]
        with torch.autocast(device, torch.bfloat16):
            logits = model(window[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        running += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {running.item() / 100:.4f}", flush=True)
            running.zero_()
        if step == LIMIT:
            return


if __name__ == "__main__":
    main()
