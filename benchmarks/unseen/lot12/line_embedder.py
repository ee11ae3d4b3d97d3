"""Bag-of-trigrams autoencoder over blocks of source lines, with a cosine schedule."""

import glob
import math
import os
import tempfile
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

BLOCK = 16
BUCKETS = 2048


def write_corpus(path, max_lines):
    root = os.path.dirname(os.__file__)
    written = 0
    with open(path, "w", encoding="utf-8") as out:
        for source in sorted(glob.glob(os.path.join(root, "**", "*.py"), recursive=True)):
            with open(source, encoding="utf-8", errors="ignore") as file:
                for line in file:
                    if line.strip() and written < max_lines:
                        out.write(line)
                        written += 1


class LineBlocks(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        with open(self.path, encoding="utf-8") as file:
            return sum(1 for line in file if line.strip()) // BLOCK

    def __iter__(self):
        block = []
        with open(self.path, encoding="utf-8") as file:
            for line in file:
                block.append(line)
                if len(block) == BLOCK:
                    yield self.encode(block)
                    block = []

    def encode(self, block):
        words = "".join(block).split()
        ids = torch.tensor([zlib.crc32(w.encode()) % BUCKETS for w in words])
        return torch.zeros(BUCKETS).index_fill_(0, ids, 1.0)


def build_model(width=128):
    return nn.Sequential(nn.Linear(BUCKETS, width), nn.ReLU(), nn.Linear(width, BUCKETS))


def main(epochs=1, base_lr=2e-3):
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "corpus.txt")
        write_corpus(path, 130000)
        loader = DataLoader(LineBlocks(path), batch_size=32)
        model = build_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=base_lr)
        for epoch in range(epochs):
            for step, bags in enumerate(loader):
                progress = epoch / epochs + step / (epochs * len(loader))
                for group in optimizer.param_groups:
                    group["lr"] = base_lr * 0.5 * (1 + math.cos(math.pi * progress))
                loss = nn.functional.binary_cross_entropy_with_logits(model(bags), bags)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % 50 == 0:
                    print(f"epoch {epoch} {step}/{len(loader)} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
