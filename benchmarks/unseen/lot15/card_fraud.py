"""Fraud scores for card transactions: streaming training with a running AUC."""

import time

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn


def transactions(batch, rng):
    """Endless synthetic transaction stream with a minority of fraud."""
    w = rng.standard_normal(40) * 0.6
    while True:
        x = rng.standard_normal((batch, 40)).astype(np.float32)
        score = x @ w + 0.8 * x[:, 0] * x[:, 1] - 4.5
        y = rng.random(batch) < 1 / (1 + np.exp(-score))
        yield torch.from_numpy(x), torch.from_numpy(y.astype(np.float32))


class RunningScore:
    def __init__(self):
        self.probs, self.truth = [], []
        self.auc, self.rate = 0.5, 0.0

    def add(self, logits, y):
        self.probs.append(torch.sigmoid(logits.detach()).numpy())
        self.truth.append(y.numpy())
        self.refresh()

    def refresh(self):
        p, t = np.concatenate(self.probs), np.concatenate(self.truth)
        self.rate = float(t.mean())
        if 0 < self.rate < 1:
            self.auc = roc_auc_score(t, p)


class Scorer(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        self.inp = nn.Linear(40, width)
        self.hid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        h = h + torch.relu(self.hid(h))
        return self.out(h).squeeze(-1)


def fit(steps=650, batch=512):
    torch.manual_seed(0)
    stream = transactions(batch, np.random.default_rng(8))
    model = Scorer()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0))
    running = RunningScore()
    last = time.perf_counter()
    for step, (x, y) in zip(range(1, steps + 1), stream):
        logits = model(x)
        loss = loss_fn(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running.add(logits, y)
        if step % 50 == 0:
            now = time.perf_counter()
            print(
                f"{step:5d} loss {loss.item():.4f} auc {running.auc:.4f} fraud {running.rate:.3f} "
                f"{(now - last) * 20:.1f} ms",
                flush=True,
            )
            last = now
    return model


if __name__ == "__main__":
    fit()
