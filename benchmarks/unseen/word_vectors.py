import argparse
import collections
import pathlib
import re
import sysconfig
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def read_corpus(max_files):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    words = []
    for path in sorted(root.glob("*.py"))[:max_files]:
        text = path.read_text(encoding="utf-8", errors="ignore")
        words.extend(re.findall(r"[A-Za-z_]{2,}", text.lower()))
    return words


class SkipGramDataset(Dataset):
    def __init__(self, words, min_count, window, n_neg):
        counts = collections.Counter(words)
        self.vocab = [w for w, c in counts.most_common() if c >= min_count]
        index = {w: i for i, w in enumerate(self.vocab)}
        self.ids = np.array([index[w] for w in words if w in index])
        freq = np.array([counts[w] for w in self.vocab], dtype=np.float64) ** 0.75
        self.noise = freq / freq.sum()
        self.window = window
        self.n_neg = n_neg

    def __len__(self):
        return len(self.ids) - 2 * self.window

    def __getitem__(self, i):
        center = i + self.window
        offset = np.random.randint(1, self.window + 1) * np.random.choice((-1, 1))
        negatives = np.random.choice(len(self.vocab), size=self.n_neg, p=self.noise)
        return self.ids[center], self.ids[center + offset], negatives


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.center = nn.Embedding(vocab, dim, sparse=True)
        self.context = nn.Embedding(vocab, dim, sparse=True)
        nn.init.uniform_(self.center.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.context.weight)

    def forward(self, center, positive, negatives):
        c = self.center(center)
        pos = (c * self.context(positive)).sum(-1)
        neg = torch.bmm(self.context(negatives), c.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(pos) + F.logsigmoid(-neg).sum(1)).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--files", type=int, default=90)
    p.add_argument("--dim", type=int, default=200)
    p.add_argument("--window", type=int, default=5)
    p.add_argument("--negatives", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=512)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()

    torch.manual_seed(0)
    np.random.seed(0)
    data = SkipGramDataset(read_corpus(args.files), 3, args.window, args.negatives)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = SkipGram(len(data.vocab), args.dim)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=args.lr)
    print(f"{len(data.ids)} tokens, {len(data.vocab)} types")

    running, start = torch.zeros(()), time.time()
    for step, (center, positive, negatives) in enumerate(loader, 1):
        loss = model(center, positive, negatives)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.detach()
        if step % 50 == 0:
            rate = step * args.batch_size / (time.time() - start)
            print(f"step {step} loss {running.item() / 50:.3f} {rate:.0f} pairs/s")
            running.zero_()
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
