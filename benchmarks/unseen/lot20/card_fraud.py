"""Fraud scoring on card transactions: embeddings for the categories, an MLP, focal loss, AUC followed during training."""

import os
import time

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

STEPS = int(os.environ.get("STEPS", 700))
BATCH = 512
CATEGORIES = {"merchant": 400, "country": 60, "channel": 5, "hour": 24, "issuer": 80}


class Transactions:
    """Transactions of some months; fraud depends on amount, hour and a few merchants and countries."""

    def __init__(self, count=200_000, numeric=12, seed=11):
        rng = np.random.default_rng(seed)
        columns = [np.minimum(rng.zipf(1.4, count) - 1, n - 1) for n in CATEGORIES.values()]
        self.categorical = torch.from_numpy(np.stack(columns, 1).astype(np.int64))
        values = rng.normal(size=(count, numeric)).astype(np.float32)
        values[:, 0] = rng.lognormal(0, 1, count)
        risk = {name: rng.normal(0, 0.8, n) for name, n in CATEGORIES.items()}
        score = sum(risk[name][column] for name, column in zip(CATEGORIES, columns))
        score += 0.5 * values[:, 0] + 0.6 * values[:, 1] * values[:, 2] - 0.4 * values[:, 3] - 4.2
        self.numeric = torch.from_numpy(values)
        self.fraud = torch.from_numpy((rng.random(count) < 1 / (1 + np.exp(-score))).astype(np.float32))

    def batches(self, size):
        while True:
            order = torch.randperm(len(self.fraud))
            for rows in order.split(size):
                if len(rows) == size:
                    yield self.categorical[rows], self.numeric[rows], self.fraud[rows]


class FraudNet(nn.Module):
    def __init__(self, numeric=12, width=16, hidden=192):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in CATEGORIES.values())
        self.norm = nn.BatchNorm1d(numeric)
        self.mlp = nn.Sequential(
            nn.Linear(width * len(CATEGORIES) + numeric, hidden), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 1),
        )

    def forward(self, categorical, numeric):
        parts = [table(categorical[:, k]) for k, table in enumerate(self.tables)]
        return self.mlp(torch.cat(parts + [self.norm(numeric)], 1)).squeeze(1)


def focal_loss(logits, target, gamma=1.5, alpha=0.75):
    cross_entropy = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p = torch.exp(-cross_entropy)
    weight = alpha * target + (1 - alpha) * (1 - target)
    return (weight * (1 - p) ** gamma * cross_entropy).mean()


class Tracker:
    """Scores and labels of the training so far, for a progressive AUC (each batch is scored before it is learned)."""

    def __init__(self):
        self.scores, self.labels, self.curve = [], [], []

    def update(self, logits, target):
        self.scores.append(torch.sigmoid(logits).detach().numpy())
        self.labels.append(target.numpy())
        self.curve.append(self.auc())

    def auc(self):
        return roc_auc_score(np.concatenate(self.labels), np.concatenate(self.scores))


def main():
    torch.manual_seed(5)
    data = Transactions()
    print(f"{len(data.fraud)} transactions, {100 * data.fraud.mean():.2f}% fraud")
    model = FraudNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    tracker = Tracker()
    stream = data.batches(BATCH)
    begin = time.time()
    for step in range(1, STEPS + 1):
        categorical, numeric, fraud = next(stream)
        logits = model(categorical, numeric)
        loss = focal_loss(logits, fraud)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tracker.update(logits, fraud)
        if step % 100 == 0:
            print(f"step {step:4d} loss {loss.item():.5f} progressive AUC {tracker.curve[-1]:.4f}")
    print(f"{(time.time() - begin) / STEPS * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
