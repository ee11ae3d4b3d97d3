"""Item vectors from shopping baskets (skip-gram with negative samples)."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

N_ITEMS = 120_000
DIM = 32
NEGATIVES = 8
BATCH = 256


class Baskets:
    """Yields (item, neighbour) pairs drawn from synthetic baskets."""

    def __init__(self, n_baskets=8000, seed=0):
        rng = np.random.default_rng(seed)
        centres = rng.integers(0, N_ITEMS, size=(n_baskets, 1))
        self.baskets = (centres + rng.integers(0, 40, size=(n_baskets, 8))) % N_ITEMS
        self.rng = rng

    def batches(self, n):
        for _ in range(n):
            rows = self.rng.integers(0, len(self.baskets), BATCH)
            cols = self.rng.permuted(np.tile(np.arange(8), (BATCH, 1)), axis=1)[:, :2]
            pair = self.baskets[rows[:, None], cols]
            negatives = self.rng.integers(0, N_ITEMS, size=(BATCH, NEGATIVES))
            yield (torch.from_numpy(pair[:, 0]), torch.from_numpy(pair[:, 1]), torch.from_numpy(negatives))


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(N_ITEMS, DIM)
        self.context = nn.Embedding(N_ITEMS, DIM)
        nn.init.uniform_(self.item.weight, -0.5 / DIM, 0.5 / DIM)
        nn.init.zeros_(self.context.weight)

    def forward(self, item, neighbour, negatives):
        v = self.item(item)
        pos = (v * self.context(neighbour)).sum(-1)
        neg = torch.einsum("bd,bnd->bn", v, self.context(negatives))
        return -(F.logsigmoid(pos) + F.logsigmoid(-neg).sum(-1)).mean()


def main():
    torch.manual_seed(0)
    data = Baskets()
    model = SkipGram()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(3):
        running = 0.0
        for step, (item, neighbour, negatives) in enumerate(data.batches(80)):
            optimizer.zero_grad()
            loss = model(item, neighbour, negatives)
            loss.backward()
            optimizer.step()
            running += loss.item()
            if step % 40 == 39:
                print(f"epoch {epoch} step {step + 1} loss {running / 40:.4f}", flush=True)
                running = 0.0
    vectors = F.normalize(model.item.weight.detach(), dim=1)
    print("nearest to item 42:", (vectors @ vectors[42]).topk(5).indices.tolist())


if __name__ == "__main__":
    main()
