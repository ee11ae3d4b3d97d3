"""Metric learning on handwritten digits with a triplet loss."""

import time

import torch
from sklearn.datasets import load_digits
from torch import nn


class Embedder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * 16, dim)

    def forward(self, x):
        return nn.functional.normalize(self.head(self.features(x)), dim=1)


class TripletLoss(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.margin = margin

    def hardest(self, distances, labels, anchor):
        positive, negative = anchor, None
        for j in range(len(labels)):
            if labels[j] == labels[anchor]:
                if distances[anchor, j] > distances[anchor, positive]:
                    positive = j
            elif negative is None or distances[anchor, j] < distances[anchor, negative]:
                negative = j
        return positive, negative

    def forward(self, embeddings, labels):
        distances = torch.cdist(embeddings, embeddings)
        detached = distances.detach()
        pairs = [self.hardest(detached, labels, i) for i in range(len(labels))]
        positive = torch.tensor([p for p, _ in pairs])
        negative = torch.tensor([n for _, n in pairs])
        rows = torch.arange(len(labels))
        gap = distances[rows, positive] - distances[rows, negative]
        return torch.relu(gap + self.margin).mean()


def batches(images, labels, size):
    order = torch.randperm(len(images))
    for k in range(0, len(order) - size + 1, size):
        index = order[k : k + size]
        yield images[index], labels[index]


def main():
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    model = Embedder()
    criterion = TripletLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start, step = time.time(), 0
    for epoch in range(7):
        for x, y in batches(images, labels, 72):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} ({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()
