"""Card-fraud scoring model on synthetic transactions."""

import time

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

N_MERCHANTS = 400


def make_transactions(n, seed=0):
    rng = np.random.default_rng(seed)
    amounts = rng.lognormal(3, 1, (n, 1))
    hour = rng.uniform(0, 24, (n, 1))
    other = rng.normal(0, 1, (n, 30))
    merchant = rng.integers(0, N_MERCHANTS, n)
    risk = rng.normal(0, 1, N_MERCHANTS)[merchant]
    logit = 0.8 * np.log(amounts[:, 0]) + risk + other[:, 0] * other[:, 1] - 6.0
    fraud = rng.random(n) < 1 / (1 + np.exp(-logit))
    x = np.hstack([np.log(amounts), np.sin(hour / 24 * 2 * np.pi), other]).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(merchant), torch.from_numpy(fraud.astype(np.float32))


class RunningMetrics:
    """Loss and ranking quality since the start of the epoch."""

    def __init__(self):
        self.losses, self.scores, self.labels = [], [], []

    def update(self, loss, logits, labels):
        self.losses.append(loss.item())
        self.scores.append(torch.sigmoid(logits).detach().numpy())
        self.labels.append(labels.numpy())

    def summary(self):
        labels = np.concatenate(self.labels)
        scores = np.concatenate(self.scores)
        return {"loss": float(np.mean(self.losses)), "auc": roc_auc_score(labels, scores)}


class FraudNet(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.merchant = nn.Embedding(N_MERCHANTS, 16)
        self.net = nn.Sequential(
            nn.Linear(32 + 16, hidden),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x, merchant):
        return self.net(torch.cat([x, self.merchant(merchant)], 1)).squeeze(1)


def main():
    torch.manual_seed(0)
    x, merchant, fraud = make_transactions(110_000)
    model = FraudNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    batch = 1024
    for epoch in range(2):
        metrics = RunningMetrics()
        order = torch.randperm(len(x))
        start = time.time()
        for step, idx in enumerate(order.split(batch), 1):
            logits = model(x[idx], merchant[idx])
            loss = loss_fn(logits, fraud[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metrics.update(loss, logits, fraud[idx])
            summary = metrics.summary()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {summary['loss']:.4f} auc {summary['auc']:.4f}", flush=True)
        print(f"epoch {epoch}: {step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
