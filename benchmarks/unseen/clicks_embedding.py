"""Predict clicks from user and item ids."""

import argparse

import numpy as np
import torch
from torch import nn

USERS, ITEMS, DIM = 110_000, 25_000, 32


def make_log(n, rng):
    users = rng.zipf(1.3, n) % USERS
    items = rng.zipf(1.2, n) % ITEMS
    taste = rng.normal(size=64)
    p = 1 / (1 + np.exp(-(taste[users % 64] * taste[items % 64])))
    clicked = rng.random(n) < p
    return (torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(clicked.astype(np.float32)))


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, DIM)
        self.items = nn.Embedding(ITEMS, DIM)
        self.head = nn.Sequential(nn.Linear(2 * DIM, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, user, item):
        return self.head(torch.cat([self.users(user), self.items(item)], dim=1)).squeeze(1)


def batches(log, size, generator):
    order = torch.randperm(len(log[0]), generator=generator)
    for chunk in order.split(size):
        yield tuple(column[chunk] for column in log)


def train_epoch(model, log, opts, args, generator):
    total = 0.0
    for step, (user, item, clicked) in enumerate(batches(log, args.batch, generator)):
        logits = model(user, item)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicked)
        for opt in opts:
            opt.zero_grad()
        loss.backward()
        for opt in opts:
            opt.step()
        total += loss.item()
        if step % 50 == 49:
            print(f"  step {step + 1} loss {total / (step + 1):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    log = make_log(args.batch * 140, np.random.default_rng(1))
    model = ClickModel()
    tables = [model.users.weight, model.items.weight]
    opts = [
        torch.optim.Adam(tables, lr=1e-3),
        torch.optim.Adam(model.head.parameters(), lr=1e-3),
    ]
    for epoch in range(args.epochs):
        print("epoch", epoch)
        train_epoch(model, log, opts, args, generator)


if __name__ == "__main__":
    main()
