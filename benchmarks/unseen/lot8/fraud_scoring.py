"""Fraud scoring on card transactions; rare positives are drawn more often."""

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Transactions(Dataset):
    def __init__(self, count=50000, features=40, positive_rate=0.01):
        rng = np.random.default_rng(11)
        self.labels = (rng.random(count) < positive_rate).astype(np.float32)
        self.features = rng.normal(size=(count, features)).astype(np.float32)
        self.features += self.labels[:, None] * 0.4
        self.merchants = rng.integers(0, 500, count)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return (torch.from_numpy(self.features[index]), int(self.merchants[index]), self.labels[index])


class BalancedSampler(Sampler):
    def __init__(self, labels, length, seed=0):
        counts = np.bincount(labels.astype(int), minlength=2)
        weights = 1.0 / counts[labels.astype(int)]
        self.weights = weights / weights.sum()
        self.length = length
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.length

    def __iter__(self):
        population = len(self.weights)
        for _ in range(self.length):
            yield int(self.rng.choice(population, p=self.weights))


class FraudNet(nn.Module):
    def __init__(self, features=40, merchants=500, width=768):
        super().__init__()
        self.merchant = nn.Embedding(merchants, 16)
        self.layers = nn.Sequential(
            nn.Linear(features + 16, width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, 1),
        )

    def forward(self, features, merchant):
        joined = torch.cat([features, self.merchant(merchant)], dim=1)
        return self.layers(joined).squeeze(1)


def main():
    torch.manual_seed(0)
    dataset = Transactions()
    sampler = BalancedSampler(dataset.labels, length=64 * 70)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2, persistent_workers=True)
    model = FraudNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(4):
        model.train()
        running = 0.0
        for features, merchant, label in loader:
            optimizer.zero_grad()
            loss = criterion(model(features, merchant), label.float())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            running += loss.item()
        print(f"epoch {epoch} loss {running / len(loader):.4f}")


if __name__ == "__main__":
    main()
