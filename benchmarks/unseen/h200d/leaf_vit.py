"""Leaf disease classification with a small vision transformer."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class LeafViT(nn.Module):
    def __init__(self, classes, size=112, patch=8, dim=512, depth=8, heads=8):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, dim)
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        b, c, h, w = x.shape
        p = self.patch
        x = x.view(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5)
        x = self.embed(x.reshape(b, (h // p) * (w // p), c * p * p)) + self.pos
        return self.head(self.norm(self.blocks(x)).mean(1))


class Trainer:
    def __init__(self, model, images, labels, device, batch=80, lr=3e-4):
        self.model = model.to(device)
        self.images, self.labels = images, labels
        self.device = device
        self.batch = batch
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05, fused=True)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.running = torch.zeros((), device=device)

    def sample(self):
        idx = torch.randint(len(self.images), (self.batch,), device=self.device)
        x = self.images[idx].float().div_(127.5).sub_(1.0)
        return x, self.labels[idx]

    def train_step(self):
        x, y = self.sample()
        logits = self.model(x)
        with torch.autocast(device_type=self.device, dtype=torch.bfloat16):
            loss = self.criterion(logits, y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.running.lerp_(loss.detach(), 0.05)

    def fit(self, steps, report_every=100):
        start = time.time()
        for step in range(1, steps + 1):
            self.train_step()
            if step % report_every == 0:
                print(f"step {step} loss {self.running.item():.4f} {time.time() - start:.1f}s")


def make_leaves(count, classes, size, device):
    labels = torch.randint(classes, (count,), device=device)
    tint = torch.randint(40, 200, (classes, 3, 1, 1), device=device)
    noise = torch.randint(0, 56, (count, 3, size, size), device=device)
    return (tint[labels] + noise).to(torch.uint8), labels


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = make_leaves(4096, 38, 112, device)
    Trainer(LeafViT(38), images, labels, device).fit(steps=350)


if __name__ == "__main__":
    main()
