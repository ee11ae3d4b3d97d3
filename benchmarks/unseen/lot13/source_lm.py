"""Character-level transformer on the standard library's sources."""

import glob
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

BLOCK = 64


def read_corpus(limit=600_000):
    parts, size = [], 0
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, encoding="utf-8", errors="ignore") as f:
            parts.append(f.read())
        size += len(parts[-1])
        if size > limit:
            break
    return "".join(parts)


class Blocks(Dataset):
    def __init__(self, text):
        raw = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)
        self.tokens = torch.from_numpy(raw.astype(np.int64))

    def __len__(self):
        return (len(self.tokens) - 1) // BLOCK

    def __getitem__(self, i):
        chunk = self.tokens[i * BLOCK : (i + 1) * BLOCK + 1]
        return chunk[:-1], chunk[1:]


class SourceLM(nn.Module):
    def __init__(self, dim=96, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(128, dim)
        self.pos = nn.Parameter(torch.zeros(BLOCK, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(BLOCK))

    def forward(self, x):
        h = self.body(self.tok(x) + self.pos, mask=self.mask, is_causal=True)
        return self.head(h)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Blocks(read_corpus()), batch_size=16, shuffle=True, num_workers=2, drop_last=True)
    model = SourceLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 280:
            break


if __name__ == "__main__":
    main()
