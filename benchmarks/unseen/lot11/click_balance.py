"""Click prediction on an imbalanced log, with class-balanced draws."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class ClickLog(Dataset):
    def __init__(self, n, features=64, seed=0):
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((n, features), dtype=np.float32)
        self.y = (self.x[:, :4].sum(1) > 4.5).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class BalancedSampler(Sampler):
    def __init__(self, labels, draws, seed=0):
        counts = np.bincount(labels.astype(int))
        weights = 1.0 / counts[labels.astype(int)]
        self.p = weights / weights.sum()
        self.draws = draws
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.draws

    def __iter__(self):
        for _ in range(self.draws):
            yield int(self.rng.choice(len(self.p), p=self.p))


class Net(nn.Module):
    def __init__(self, features=64, width=512):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(1)


def main():
    torch.manual_seed(0)
    data = ClickLog(80_000)
    sampler = BalancedSampler(data.y, draws=6400)
    loader = DataLoader(data, batch_size=64, sampler=sampler, num_workers=2, persistent_workers=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    step, start = 0, time.time()
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 40 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} ({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()
