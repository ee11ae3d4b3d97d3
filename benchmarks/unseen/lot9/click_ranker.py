"""Train a click model on user/item identifiers."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

N_USERS = 120_000
N_ITEMS = 90_000


class ClickLog:
    """Synthetic log: popular items are clicked more often by active users."""

    def __init__(self, n_events, seed=0):
        rng = np.random.default_rng(seed)
        self.users = rng.integers(0, N_USERS, n_events)
        self.items = (rng.beta(0.6, 3.0, n_events) * N_ITEMS).astype(np.int64)
        self.context = rng.normal(size=(n_events, 16)).astype(np.float32)
        score = self.context[:, 0] - 2.0 * self.items / N_ITEMS + 0.3 * (self.users % 7 - 3)
        self.clicks = (score + rng.logistic(size=n_events) > 0).astype(np.float32)

    def batches(self, batch_size, rng):
        order = rng.permutation(len(self.clicks))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            idx = order[start : start + batch_size]
            yield (
                torch.from_numpy(self.users[idx]),
                torch.from_numpy(self.items[idx]),
                torch.from_numpy(self.context[idx]),
                torch.from_numpy(self.clicks[idx]),
            )


class ClickModel(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.user = nn.Embedding(N_USERS, dim)
        self.item = nn.Embedding(N_ITEMS, dim)
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim + 16, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)

    def forward(self, users, items, context):
        x = torch.cat([self.user(users), self.item(items), context], dim=1)
        return self.mlp(x).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    log = ClickLog(n_events=35_000)
    model = ClickModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    step = 0
    for epoch in range(args.epochs):
        for users, items, context, clicks in log.batches(args.batch_size, rng):
            logits = model(users, items, context)
            loss = F.binary_cross_entropy_with_logits(logits, clicks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 40 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
