"""Metric learning on sklearn's digits: batch-hard triplet loss, nearest-neighbour accuracy."""

import os
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

STEPS = int(os.environ.get("STEPS", 500))
PER_CLASS = 20
MARGIN = 0.3


class ClassBalanced:
    """Yields batches holding PER_CLASS samples of each of the ten digits."""

    def __init__(self, x, y, seed=0):
        self.x = torch.from_numpy(x)
        self.y = torch.from_numpy(y)
        self.members = [np.flatnonzero(y == c) for c in range(10)]
        self.rng = np.random.default_rng(seed)

    def sample(self):
        chosen = [self.rng.choice(m, PER_CLASS, replace=False) for m in self.members]
        index = torch.from_numpy(np.concatenate(chosen))
        return self.x[index], self.y[index]


class Embedder(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(),
            nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(),
            nn.Linear(512, dim),
        )

    def forward(self, x):
        return nn.functional.normalize(self.body(x), dim=1)


def pairwise_distances(e):
    difference = e.unsqueeze(1) - e.unsqueeze(0)
    squared = difference.pow(2).sum(dim=-1)
    return torch.sqrt(squared.clamp_min(1e-12))


class BatchHardTriplet(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, e, labels):
        dist = pairwise_distances(e)
        same = labels.unsqueeze(0) == labels.unsqueeze(1)
        hardest_positive = dist.masked_fill(~same, -1.0).amax(dim=1)
        hardest_negative = dist.masked_fill(same, 1e3).amin(dim=1)
        return torch.relu(hardest_positive - hardest_negative + self.margin).mean()


@torch.no_grad()
def knn_accuracy(model, x_train, y_train, x_test, y_test):
    model.eval()
    gallery = model(torch.from_numpy(x_train)).numpy()
    probe = model(torch.from_numpy(x_test)).numpy()
    model.train()
    return KNeighborsClassifier(5).fit(gallery, y_train).score(probe, y_test)


def main():
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x = (x / 16.0).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.3, random_state=0)
    batches = ClassBalanced(x_train, y_train)
    model = Embedder()
    criterion = BatchHardTriplet(MARGIN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        images, labels = batches.sample()
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            score = knn_accuracy(model, x_train, y_train, x_test, y_test)
            print(f"step {step}: loss {loss.item():.4f}, 5-nn accuracy {score:.3f}")
    took = time.perf_counter() - begin
    print(f"{STEPS} steps, {took / STEPS * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
