"""Rhythm classification on 12-lead ECG windows with a patch transformer."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
LEADS = 12
PATCH = 32
PATCHES = 48
WIDTH = 192 if GPU else 32
DEPTH = 28 if GPU else 3
HEADS = 4
CLASSES = 9
BATCH = 64 if GPU else 4
WINDOWS = 4096 if GPU else 64
STEPS = 800
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al., 2023)."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, wd = group["lr"], group["weight_decay"]
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                p.mul_(1 - lr * wd)
                update = exp_avg * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign(), alpha=-lr)
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ECGTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv1d(LEADS, WIDTH, PATCH, PATCH)
        self.pos = nn.Parameter(torch.zeros(1, PATCHES, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.embed(x).transpose(1, 2) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x).mean(1))


def make_windows(device):
    labels = torch.randint(0, CLASSES, (WINDOWS,), device=device)
    t = torch.linspace(0, 6.28, PATCH * PATCHES, device=device)
    waves = torch.sin(t * (3 + labels.float())[:, None])[:, None, :].repeat(1, LEADS, 1)
    return waves + 0.2 * torch.randn_like(waves), labels


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.set_float32_matmul_precision("high")
    waves, labels = make_windows(device)
    model = ECGTransformer().to(device)
    optimizer = Lion(model.parameters(), lr=1e-4, weight_decay=0.1)

    for step in range(STEPS):
        idx = torch.randint(0, WINDOWS, (BATCH,), device=device)
        loss = F.cross_entropy(model(waves[idx]), labels[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if LIMIT and step + 1 >= LIMIT:
            return


if __name__ == "__main__":
    main()
