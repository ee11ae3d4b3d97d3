"""Click-through model on hashed categorical features (synthetic ad log)."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class AdLog:
    """Synthetic impressions: each one has a few categorical fields, hashed into one id space."""

    def __init__(self, rows, fields, buckets, seed):
        rng = np.random.default_rng(seed)
        raw = rng.zipf(1.25, size=(rows, fields)).astype(np.int64)
        salt = np.arange(fields, dtype=np.int64) * 7_368_787
        self.ids = torch.from_numpy((raw * 2_654_435_761 + salt) % buckets)
        self.dense = torch.from_numpy(rng.standard_normal((rows, 6)).astype(np.float32))
        effect = torch.from_numpy(rng.standard_normal(buckets).astype(np.float32))
        logit = effect[self.ids].mean(1) * 2 + self.dense[:, 0] - 0.8
        self.clicked = torch.bernoulli(torch.sigmoid(logit))

    def batches(self, size, generator):
        n = len(self.clicked)
        while True:
            order = torch.randperm(n, generator=generator)
            for part in order.split(size):
                if len(part) == size:
                    yield self.ids[part], self.dense[part], self.clicked[part]


class ClickNet(nn.Module):
    def __init__(self, fields, buckets, dim):
        super().__init__()
        self.table = nn.Embedding(buckets, dim)
        nn.init.normal_(self.table.weight, std=0.02)
        self.tower = nn.Sequential(
            nn.Linear(fields * dim + 6, 256),
            nn.ReLU(),
            nn.Linear(256, 96),
            nn.ReLU(),
            nn.Linear(96, 1),
        )

    def forward(self, ids, dense):
        e = self.table(ids).flatten(1)
        return self.tower(torch.cat([e, dense], 1)).squeeze(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=800)
    p.add_argument("--batch-size", type=int, default=1024)
    p.add_argument("--buckets", type=int, default=400_000)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--lr", type=float, default=0.02)
    args = p.parse_args()

    torch.manual_seed(11)
    fields = 8
    log = AdLog(120_000, fields, args.buckets, seed=3)
    model = ClickNet(fields, args.buckets, args.dim)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    stream = log.batches(args.batch_size, torch.Generator().manual_seed(5))

    t0 = time.perf_counter()
    for step in range(1, args.steps + 1):
        ids, dense, clicked = next(stream)
        loss = F.binary_cross_entropy_with_logits(model(ids, dense), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            ms = (time.perf_counter() - t0) * 1000 / 50
            print(f"step {step} logloss {loss.item():.4f} {ms:.1f} ms/step", flush=True)
            t0 = time.perf_counter()


if __name__ == "__main__":
    main()
