"""Embeddings for signature matching, trained with a triplet loss."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class IdentityBatches:
    """Batches of P identities with K samples each."""

    def __init__(self, p=8, k=6, steps=70, seed=0):
        x, y = load_digits(return_X_y=True)
        self.x = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.y = y
        self.p, self.k, self.steps = p, k, steps
        self.rng = np.random.default_rng(seed)
        self.by_label = [np.flatnonzero(y == c) for c in range(10)]

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            labels = self.rng.choice(10, self.p, replace=False)
            rows = np.concatenate([self.rng.choice(self.by_label[c], self.k) for c in labels])
            yield self.x[rows], torch.from_numpy(self.y[rows])


class EmbeddingNet(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 48, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(48, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 96, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(96 * 16, dim),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def triplet_loss(emb, labels, margin=0.3):
    dist = torch.cdist(emb, emb)
    n = len(labels)
    losses = []
    for i in range(n):
        furthest = None
        closest = None
        for j in range(n):
            if i == j:
                continue
            if labels[i] == labels[j]:
                if furthest is None or dist[i, j] > furthest:
                    furthest = dist[i, j]
            elif closest is None or dist[i, j] < closest:
                closest = dist[i, j]
        losses.append(F.relu(furthest - closest + margin))
    return torch.stack(losses).mean()


def main():
    torch.manual_seed(0)
    batches = IdentityBatches()
    model = EmbeddingNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for epoch in range(4):
        total = 0.0
        for step, (x, labels) in enumerate(batches):
            loss = triplet_loss(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            if (step + 1) % 35 == 0:
                print(f"epoch {epoch} step {step + 1} loss {total / 35:.4f}", flush=True)
                total = 0.0


if __name__ == "__main__":
    main()
