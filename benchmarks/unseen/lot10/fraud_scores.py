"""Fraud scoring on card transactions with few positives."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Transactions(Dataset):
    def __init__(self, n=80_000, n_features=40, seed=0):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(n, n_features)).astype(np.float32)
        self.amount = rng.lognormal(3, 1, n).astype(np.float32)
        score = self.x[:, :6].sum(1) + 0.3 * np.log(self.amount) + rng.normal(size=n)
        self.y = (score > np.quantile(score, 0.985)).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        row = np.append(self.x[i], np.log1p(self.amount[i]))
        return torch.from_numpy(row), self.y[i]


class BalancedSampler(Sampler):
    """Draws fraud and ordinary transactions about equally often."""

    def __init__(self, labels, n_draws, seed=0):
        positives = labels.mean()
        weights = np.where(labels > 0, 0.5 / positives, 0.5 / (1 - positives))
        self.p = weights / weights.sum()
        self.n_draws = n_draws
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.n_draws

    def __iter__(self):
        for _ in range(self.n_draws):
            yield int(self.rng.choice(len(self.p), p=self.p))


class FraudNet(nn.Module):
    def __init__(self, n_features=41, hidden=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_features, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def main():
    torch.manual_seed(0)
    data = Transactions()
    sampler = BalancedSampler(data.y, n_draws=80 * 128)
    loader = DataLoader(data, batch_size=128, sampler=sampler, num_workers=2, persistent_workers=True)
    model = FraudNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        total = 0.0
        for step, (x, y) in enumerate(loader):
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            if step % 20 == 19:
                print(f"epoch {epoch} step {step + 1} loss {total / 20:.4f}", flush=True)
                total = 0.0


if __name__ == "__main__":
    main()
