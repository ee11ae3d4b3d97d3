# planted: full attention matrix, with a float32 mask of (B, H, T, T) (peak of the step, activations)
# line: 49 (with 76)
# dominates at the peak: activations: 45 of 69.5 MB at the softmax's line (14 MB a matrix: one kept a layer and
#     two temporaries), 14 MB the mask
# held by: the graph (SoftmaxBackward of each layer); the mask: local of EcgTransformer.forward
# mend: F.scaled_dot_product_attention with the boolean mask valid[:, None, None, :]
# measured: CPU: peak 69.5 -> 17.7 MB
# on a GPU: 1.07 GB a matrix, about 10 GB (not run)
"""Arrhythmia classes from ECG strips of different length, transformer over patches of the signal."""
import math
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
DIM, HEADS, DEPTH = (512, 16, 6) if CUDA else (64, 4, 2)
PATCHES, BATCH = (1024, 16) if CUDA else (384, 6)
STEPS = int(os.environ.get("STEPS", 300 if CUDA else 240))
PATCH, CLASSES = 16, 5


def strips(n, generator):
    """Beats with class-dependent rate and width; strips end at different times."""
    label = torch.randint(0, CLASSES, (n,), generator=generator)
    t = torch.arange(PATCHES * PATCH) / 250.0
    rate = 0.8 + 0.25 * label[:, None] + 0.05 * torch.randn(n, 1, generator=generator)
    phase = (t * rate + torch.rand(n, 1, generator=generator)) % 1.0
    beat = torch.exp(-((phase - 0.5) / (0.02 + 0.005 * label[:, None])) ** 2)
    wave = beat + 0.2 * torch.sin(2 * math.pi * phase) + 0.1 * torch.randn(n, len(t), generator=generator)
    length = torch.randint(PATCHES // 2, PATCHES + 1, (n,), generator=generator)
    valid = torch.arange(PATCHES) < length[:, None]
    return wave.view(n, PATCHES, PATCH) * valid.unsqueeze(-1), valid, label


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(c // self.heads) + mask, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class EcgTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(PATCH, DIM)
        self.position = nn.Parameter(0.02 * torch.randn(PATCHES, DIM))
        self.blocks = nn.ModuleList(Block(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x, valid):
        b, t, _ = x.shape
        mask = torch.zeros(b, HEADS, t, t, device=x.device)
        mask.masked_fill_(~valid[:, None, None, :], float("-inf"))
        h = self.patch(x) + self.position
        for block in self.blocks:
            h = block(h, mask)
        h = self.norm(h) * valid.unsqueeze(-1)
        return self.head(h.sum(1) / valid.sum(1, keepdim=True))


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    model = EcgTransformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    begin, right = time.perf_counter(), 0
    for step in range(1, STEPS + 1):
        x, valid, label = (item.to(device) for item in strips(BATCH, generator))
        logits = model(x, valid)
        loss = F.cross_entropy(logits, label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        right += (logits.argmax(1) == label).sum().item()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f} accuracy {right / (10 * BATCH):.2f}", flush=True)
            right = 0
    print(f"{(time.perf_counter() - begin) / STEPS * 1e3:.0f} ms a step")


if __name__ == "__main__":
    main()
