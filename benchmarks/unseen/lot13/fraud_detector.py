"""Card-fraud detector on heavily imbalanced transactions."""

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

FEATURES = 30


class Transactions(Dataset):
    def __init__(self, n=120_000, fraud_rate=0.004, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = (rng.random(n) < fraud_rate).astype(np.float32)
        self.table = rng.standard_normal((n, FEATURES), dtype=np.float32)
        self.table[:, :6] += 0.8 * self.labels[:, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.table[i]), self.labels[i]


class BalancedSampler(Sampler):
    """Draws both classes equally often, with replacement."""

    def __init__(self, labels, num_samples, seed=0):
        self.rng = np.random.default_rng(seed)
        self.num_samples = num_samples
        positive = labels > 0.5
        weights = np.where(positive, 1.0 / positive.sum(), 1.0 / (~positive).sum())
        self.probs = weights / weights.sum()

    def __len__(self):
        return self.num_samples

    def __iter__(self):
        n = len(self.probs)
        for _ in range(self.num_samples):
            yield int(self.rng.choice(n, p=self.probs))


class Detector(nn.Module):
    def __init__(self, width=128, dropout=0.1):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    torch.manual_seed(0)
    data = Transactions()
    sampler = BalancedSampler(data.labels, num_samples=64 * 120)
    loader = DataLoader(data, batch_size=64, sampler=sampler, num_workers=2, persistent_workers=True)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(2):
        hits = seen = 0
        for step, (x, y) in enumerate(loader):
            logits = model(x)
            loss = criterion(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += ((logits > 0) == (y > 0.5)).sum().item()
            seen += len(y)
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} acc {hits / seen:.3f}", flush=True)


if __name__ == "__main__":
    main()
