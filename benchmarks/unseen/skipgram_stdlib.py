"""Skip-gram embeddings of identifiers in the Python standard library."""

import collections
import glob
import os
import re
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

WORD = re.compile(r"[A-Za-z_]{2,}")


def read_corpus(limit=120):
    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:limit]
    words = []
    for name in files:
        with open(name, encoding="utf-8", errors="ignore") as f:
            words += WORD.findall(f.read().lower())
    return words


def build_vocab(words, size=9000):
    counts = collections.Counter(words).most_common(size)
    index = {w: i for i, (w, _) in enumerate(counts)}
    freq = np.array([c for _, c in counts], dtype=np.float64)
    return index, freq


class SkipGramPairs(Dataset):
    def __init__(self, ids, freq, window=3, negatives=8):
        self.ids = np.asarray(ids)
        self.window = window
        self.negatives = negatives
        noise = freq**0.75
        self.noise = noise / noise.sum()

    def __len__(self):
        return len(self.ids) - 2 * self.window

    def __getitem__(self, i):
        pos = i + self.window
        offset = np.random.randint(1, self.window + 1)
        if np.random.rand() < 0.5:
            offset = -offset
        neg = np.random.choice(len(self.noise), size=self.negatives, p=self.noise)
        return self.ids[pos], self.ids[pos + offset], neg


def collate(samples):
    center, context, neg = zip(*samples)
    return (torch.from_numpy(np.array(center)), torch.from_numpy(np.array(context)), torch.from_numpy(np.stack(neg)))


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.inp = nn.Embedding(vocab, dim, sparse=True)
        self.out = nn.Embedding(vocab, dim, sparse=True)
        nn.init.uniform_(self.inp.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.out.weight)

    def forward(self, center, context, neg):
        v = self.inp(center)
        pos = (v * self.out(context)).sum(-1)
        negs = torch.bmm(self.out(neg), v.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(pos) + F.logsigmoid(-negs).sum(1)).mean()


def main():
    torch.manual_seed(1)
    np.random.seed(1)
    words = read_corpus()
    index, freq = build_vocab(words)
    ids = [index[w] for w in words if w in index]
    print(f"{len(ids)} tokens, vocabulary of {len(index)}")

    loader = DataLoader(SkipGramPairs(ids, freq), batch_size=512, shuffle=True, collate_fn=collate, drop_last=True)
    model = SkipGram(len(index), 200)
    opt = torch.optim.SparseAdam(model.parameters(), lr=2e-3)

    total, start = torch.zeros(()), time.perf_counter()
    for step, (center, context, neg) in enumerate(loader, 1):
        loss = model(center, context, neg)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
        if step % 40 == 0:
            print(f"{step:5d}  loss {total.item() / 40:.4f}")
            total.zero_()
        if step == 120:
            break
    took = time.perf_counter() - start
    print(f"{took / step * 1e3:.1f} ms/step")


if __name__ == "__main__":
    main()
