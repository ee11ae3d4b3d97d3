"""Fraud scoring on tabular transactions."""

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn


def make_transactions(n, rng):
    x = rng.normal(size=(n, 60)).astype(np.float32)
    risk = x[:, :5].sum(1) + 0.5 * x[:, 5] * x[:, 6] + rng.normal(size=n)
    y = (risk > np.quantile(risk, 0.93)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(y)


class Scorer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(60, width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Monitor:
    def __init__(self):
        self.scores = []
        self.targets = []
        self.auc = self.ap = 0.0

    def update(self, logits, target):
        self.scores.append(logits.detach().sigmoid())
        self.targets.append(target)
        self.refresh()

    def refresh(self):
        scores = torch.cat(self.scores).numpy()
        targets = torch.cat(self.targets).numpy()
        if targets.any():
            self.auc = roc_auc_score(targets, scores)
            self.ap = average_precision_score(targets, scores)


def main():
    torch.manual_seed(3)
    x, y = make_transactions(640 * 148, np.random.default_rng(3))
    model = Scorer()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(8.0))
    for epoch in range(2):
        monitor = Monitor()
        order = torch.randperm(len(x))
        for step, chunk in enumerate(order.split(640)):
            logits = model(x[chunk])
            loss = criterion(logits, y[chunk])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            monitor.update(logits, y[chunk])
            if step % 30 == 29:
                print(f"epoch {epoch} step {step + 1} loss {loss.item():.4f} auc {monitor.auc:.4f} ap {monitor.ap:.4f}")


if __name__ == "__main__":
    main()
