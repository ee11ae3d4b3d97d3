"""Product vectors from supermarket baskets (skip-gram with negative sampling)."""

import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

PRODUCTS = 60_000
AISLES = 400
DIM = 64
PAIRS, NEGATIVES = 512, 5
STEPS = 700


def shop(n_baskets, seed):
    """Baskets of product ids; the products of one basket come from two or three aisles."""
    rng = np.random.default_rng(seed)
    per = PRODUCTS // AISLES
    popularity = 1.0 / (1 + np.arange(per)) ** 0.8
    popularity /= popularity.sum()
    out = []
    for _ in range(n_baskets):
        aisles = rng.integers(0, AISLES, rng.integers(2, 4))
        size = rng.integers(4, 12)
        out.append(aisles[rng.integers(0, len(aisles), size)] * per + rng.choice(per, size, p=popularity))
    return out


def cooccurrences(baskets):
    centre, context = [], []
    for b in baskets:
        i, j = np.triu_indices(len(b), 1)
        centre.append(b[i])
        context.append(b[j])
    return np.concatenate(centre), np.concatenate(context)


def negative_table(baskets, size=1_000_000, power=0.75):
    counts = np.bincount(np.concatenate(baskets), minlength=PRODUCTS).astype(np.float64) ** power
    return np.repeat(np.arange(PRODUCTS), np.ceil(counts / counts.sum() * size).astype(int))


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.centre = nn.Embedding(vocab, dim)
        self.context = nn.Embedding(vocab, dim)
        nn.init.uniform_(self.centre.weight, -0.5 / math.sqrt(dim), 0.5 / math.sqrt(dim))
        nn.init.zeros_(self.context.weight)

    def forward(self, c, o, neg):
        v = self.centre(c)
        pos = (v * self.context(o)).sum(-1)
        bad = torch.einsum("bd,bkd->bk", v, self.context(neg))
        return -(F.logsigmoid(pos) + F.logsigmoid(-bad).sum(-1)).mean()


def epochs(centre, context, table, rng):
    while True:
        order = rng.permutation(len(centre))
        for k in range(0, len(order) - PAIRS + 1, PAIRS):
            idx = order[k : k + PAIRS]
            neg = table[rng.integers(0, len(table), (PAIRS, NEGATIVES))]
            yield torch.from_numpy(centre[idx]), torch.from_numpy(context[idx]), torch.from_numpy(neg)


def train():
    torch.manual_seed(6)
    rng = np.random.default_rng(6)
    baskets = shop(8000, 6)
    centre, context = cooccurrences(baskets)
    table = negative_table(baskets)
    model = SkipGram(PRODUCTS, DIM)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
    running = 0.0
    began = time.perf_counter()
    for step, (c, o, neg) in enumerate(epochs(centre, context, table, rng), 1):
        optimizer.zero_grad()
        loss = model(c, o, neg)
        loss.backward()
        optimizer.step()
        running += (loss.item() - running) / min(step, 50)
        if step % 100 == 0:
            print(f"{step:5d}/{STEPS} pairs/step {PAIRS} loss {running:.4f}")
        if step == STEPS:
            break
    took = time.perf_counter() - began
    print(f"{STEPS} steps, {took:.1f} s, {1e3 * took / STEPS:.2f} ms a step")


if __name__ == "__main__":
    train()
