"""Churn model on wide customer tables, mixed with embeddings of the plan."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_PLANS = 300


def make_customers(n=98304, n_features=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, n_features)).astype(np.float32)
    plan = rng.integers(0, N_PLANS, n)
    score = x[:, :10].sum(1) * 0.4 + np.sin(plan) + rng.normal(size=n)
    y = (score > 1.5).astype(np.float32)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(plan), torch.from_numpy(y))


class ChurnNet(nn.Module):
    def __init__(self, n_features=60, dim=16, hidden=128):
        super().__init__()
        self.plan = nn.Embedding(N_PLANS, dim)
        self.body = nn.Sequential(
            nn.Linear(n_features + dim, hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x, plan):
        return self.body(torch.cat([x, self.plan(plan)], dim=1)).squeeze(1)


class Tracker:
    """Keeps what the epoch has seen so far."""

    def __init__(self):
        self.scores, self.targets, self.losses = [], [], []

    def update(self, logits, targets, loss):
        self.scores.append(torch.sigmoid(logits).detach().numpy())
        self.targets.append(targets.numpy())
        self.losses.append(loss)
        self.auc = roc_auc_score(np.concatenate(self.targets), np.concatenate(self.scores))

    def summary(self):
        return f"loss {np.mean(self.losses):.4f} auc {self.auc:.4f}"


def main():
    torch.manual_seed(0)
    loader = DataLoader(make_customers(), batch_size=768, shuffle=True)
    model = ChurnNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(2):
        tracker = Tracker()
        for step, (x, plan, y) in enumerate(loader):
            logits = model(x, plan)
            loss = F.binary_cross_entropy_with_logits(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tracker.update(logits, y, loss.item())
            if step % 32 == 31:
                print(f"epoch {epoch} step {step + 1} {tracker.summary()}", flush=True)


if __name__ == "__main__":
    main()
