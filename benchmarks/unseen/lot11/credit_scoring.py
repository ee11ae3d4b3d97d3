"""Score loan applications with a small residual network."""

import time

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class Scorer(nn.Module):
    def __init__(self, features, width=96, depth=3):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x))).squeeze(1)


class RunningAUC:
    def __init__(self):
        self.scores = []
        self.targets = []

    def update(self, scores, targets):
        self.scores.append(scores.detach().sigmoid().numpy())
        self.targets.append(targets.numpy())
        return self.compute()

    def compute(self):
        return roc_auc_score(np.concatenate(self.targets), np.concatenate(self.scores))


def make_data(n=180_000, features=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator)
    signal = x[:, :5].sum(1) + x[:, 5] * x[:, 6]
    y = (signal + torch.randn(n, generator=generator) > 0).float()
    return x, y


def main():
    torch.manual_seed(0)
    x, y = make_data()
    model = Scorer(x.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start, size = time.time(), 1280
    for epoch in range(2):
        metric = RunningAUC()
        order = torch.randperm(len(x))
        for step, k in enumerate(range(0, len(x) - size + 1, size)):
            index = order[k : k + size]
            logits = model(x[index])
            loss = nn.functional.binary_cross_entropy_with_logits(logits, y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            auc = metric.update(logits, y[index])
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} auc {auc:.3f} ({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()
