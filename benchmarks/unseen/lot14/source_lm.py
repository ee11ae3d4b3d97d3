"""Byte-level language model on Python sources."""

import pathlib
import sysconfig
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def load_bytes(limit=2_000_000):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    chunks, size = [], 0
    for path in sorted(root.glob("*.py")):
        data = path.read_bytes()
        chunks.append(data)
        size += len(data)
        if size > limit:
            break
    return torch.from_numpy(np.frombuffer(b"".join(chunks), dtype=np.uint8).copy())


class Spans(Dataset):
    def __init__(self, data, length=96, samples=2400):
        self.data, self.length, self.samples = data, length, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        at = int(torch.randint(len(self.data) - self.length - 1, (1,)))
        return self.data[at : at + self.length + 1].long()


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class ByteLM(nn.Module):
    def __init__(self, dim=96, depth=2, length=96):
        super().__init__()
        self.tok = nn.Embedding(256, dim)
        self.pos = nn.Parameter(torch.zeros(length, dim))
        self.blocks = nn.Sequential(*[Block(dim, 4) for _ in range(depth)])
        self.out = nn.Linear(dim, 256)

    def forward(self, x):
        return self.out(self.blocks(self.tok(x) + self.pos))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Spans(load_bytes()), batch_size=16, num_workers=2)
    model = ByteLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = time.time()
    for step, span in enumerate(loader, 1):
        logits = model(span[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 256), span[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
