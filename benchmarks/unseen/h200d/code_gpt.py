"""Byte-level GPT on the sources of Python's own library."""

import pathlib
import sysconfig
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CONTEXT, DIM, HEADS, LAYERS, BATCH, STEPS = 1024, 3072, 24, 3, 10, 400


class Windows(Dataset):
    def __init__(self, count, limit=8_000_000):
        root = pathlib.Path(sysconfig.get_path("stdlib"))
        text = bytearray()
        for path in sorted(root.glob("*.py")) + sorted(root.glob("*/*.py")):
            if "site-packages" not in path.parts:
                text += path.read_bytes()
            if len(text) > limit:
                break
        self.text = np.frombuffer(bytes(text), dtype=np.uint8)
        self.starts = np.random.default_rng(0).integers(len(self.text) - CONTEXT - 1, size=count)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        start = self.starts[i]
        return torch.from_numpy(self.text[start : start + CONTEXT + 1].astype(np.int64))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(256, DIM)
        self.place = nn.Parameter(torch.randn(CONTEXT, DIM) * 0.01)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 256, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.token(ids) + self.place)))


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = Windows(STEPS * BATCH)
    loader = DataLoader(data, batch_size=BATCH, num_workers=4, pin_memory=device == "cuda")
    with torch.device(device):
        model = GPT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), fused=True)
    average = torch.zeros((), device=device)
    start = time.time()
    for step, batch in enumerate(loader, 1):
        batch = batch.to(device, non_blocking=True)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        average.lerp_(loss.detach(), 0.1)
        if step % 100 == 0:
            print(f"step {step} loss {average.item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
