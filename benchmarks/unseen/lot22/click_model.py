"""Click-through model: hashed categorical fields, one shared table, a small tower on top."""

import math
import os
import time

import numpy as np
import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 700))
FIELDS, BUCKETS, DIM, BATCH = 12, 300_000, 16, 256


class ClickStream:
    """Zipf-like ids in every field; clicks depend on hidden weights of the ids."""

    def __init__(self, rows=200_000, seed=3):
        rng = np.random.default_rng(seed)
        raw = rng.zipf(1.3, (rows, FIELDS)) % 1_000_003
        field = np.arange(FIELDS) * 7919
        self.ids = torch.from_numpy((raw * 2654435761 + field * 40503) % BUCKETS)
        hidden = rng.normal(0, 0.5, BUCKETS)
        score = hidden[self.ids.numpy()].sum(1) - 0.8
        click = rng.random(rows) < 1 / (1 + np.exp(-score))
        self.click = torch.from_numpy(click.astype(np.float32))
        self.generator = torch.Generator().manual_seed(seed)

    def batches(self, size, first, last):
        while True:
            order = torch.randperm(last - first, generator=self.generator) + first
            for chunk in order.split(size):
                if len(chunk) == size:
                    yield self.ids[chunk], self.click[chunk]


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(BUCKETS, DIM)
        nn.init.normal_(self.table.weight, std=1 / math.sqrt(DIM))
        self.tower = nn.Sequential(
            nn.Linear(FIELDS * DIM, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, ids):
        return self.tower(self.table(ids).flatten(1)).squeeze(1)


@torch.no_grad()
def log_loss(model, ids, click):
    model.eval()
    total = 0.0
    for i, c in zip(ids.split(4096), click.split(4096)):
        total += nn.functional.binary_cross_entropy_with_logits(model(i), c, reduction="sum").item()
    model.train()
    return total / len(click)


def main():
    torch.manual_seed(3)
    stream = ClickStream()
    held = slice(190_000, 200_000)
    model = ClickModel()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    loss_fn = nn.BCEWithLogitsLoss()
    running, begin = torch.zeros(()), time.perf_counter()
    batches = stream.batches(BATCH, 0, 190_000)
    for step in range(1, STEPS + 1):
        ids, click = next(batches)
        loss = loss_fn(model(ids), click)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running += loss.detach()
        if step % 350 == 0:
            held_out = log_loss(model, stream.ids[held], stream.click[held])
            print(f"step {step}  train {running.item() / 350:.4f}  held-out {held_out:.4f}")
            running.zero_()
    took = time.perf_counter() - begin
    print(f"{STEPS} steps, {took / STEPS * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
