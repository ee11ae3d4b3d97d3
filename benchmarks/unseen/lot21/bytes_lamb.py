"""Byte language model on the standard library's sources, trained with LAMB (large batch recipe)."""
import glob
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
DIM = 512 if CUDA else 32
LAYERS = 12 if CUDA else 2
HEADS = 8 if CUDA else 2
CONTEXT = 256 if CUDA else 32
BATCH = 48 if CUDA else 4
STEPS = 600 if CUDA else 4


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments (You et al. 2020)."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, clamp=10.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, clamp=clamp))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["step"] += 1
                m, v = state["m"], state["v"]
                m.lerp_(p.grad, 1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m_hat = m / (1 - b1 ** state["step"])
                v_hat = v / (1 - b2 ** state["step"])
                update = m_hat / (v_hat.sqrt() + group["eps"])
                update.add_(p, alpha=group["weight_decay"])
                w_norm = p.norm().clamp(max=group["clamp"])
                u_norm = update.norm()
                if w_norm > 0 and u_norm > 0:
                    trust = (w_norm / u_norm).item()
                else:
                    trust = 1.0
                p.add_(update, alpha=-group["lr"] * trust)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class ByteLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(256, DIM)
        self.pos = nn.Parameter(torch.randn(CONTEXT, DIM) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 256)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def corpus(limit=20_000_000 if CUDA else 200_000):
    data = bytearray()
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, "rb") as f:
            data += f.read()
        if len(data) > limit:
            break
    return torch.frombuffer(data, dtype=torch.uint8).to(device)


def main():
    torch.manual_seed(0)
    text = corpus()
    model = ByteLM().to(device)
    opt = Lamb(model.parameters(), lr=2e-3)
    offsets = torch.arange(CONTEXT + 1, device=device)
    seen = torch.zeros((), device=device)
    begin = time.time()
    for step in range(1, STEPS + 1):
        at = torch.randint(0, len(text) - CONTEXT - 1, (BATCH, 1), device=device)
        chunk = text[at + offsets].long()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(chunk[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), chunk[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        seen += loss.detach()
        if step % 50 == 0 or step == STEPS:
            print(f"step {step} loss {seen.item() / 50:.4f} {(time.time() - begin) / step * 1e3:.1f} ms", flush=True)
            seen.zero_()


if __name__ == "__main__":
    main()
