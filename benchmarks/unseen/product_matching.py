"""Learn embeddings in which offers of the same product lie close together."""

import numpy as np
import torch
from torch import nn

CLASSES = 40


def make_offers(n, rng):
    centres = rng.normal(size=(CLASSES, 200)).astype(np.float32)
    labels = rng.integers(0, CLASSES, n)
    offers = centres[labels] + 1.5 * rng.normal(size=(n, 200)).astype(np.float32)
    return torch.from_numpy(offers), torch.from_numpy(labels)


class Encoder(nn.Module):
    def __init__(self, width=1024, dim=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(200, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim)
        )

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=1)


def contrastive_loss(anchors, others, labels_a, labels_b, margin=1.0):
    total = 0.0
    for i in range(len(anchors)):
        for j in range(len(others)):
            distance = (anchors[i] - others[j]).pow(2).sum()
            if labels_a[i] == labels_b[j]:
                total = total + distance
            else:
                total = total + torch.relu(margin - distance)
    return total / (len(anchors) * len(others))


def main():
    torch.manual_seed(5)
    offers, labels = make_offers(10000, np.random.default_rng(5))
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    half = 20
    running = None
    for epoch in range(1):
        order = torch.randperm(len(offers))
        for step, chunk in enumerate(order.split(2 * half)):
            z = model(offers[chunk])
            y = labels[chunk]
            loss = contrastive_loss(z[:half], z[half:], y[:half], y[half:])
            opt.zero_grad()
            loss.backward()
            opt.step()
            running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {running:.4f}")


if __name__ == "__main__":
    main()
