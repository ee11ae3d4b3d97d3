"""Learn soft prototypes for scikit-learn's digits with an embedding net."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

N_PROTO, DIM = 400, 64


class PrototypeNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, DIM))
        self.prototypes = nn.Parameter(torch.randn(N_PROTO, DIM))
        self.votes = nn.Linear(N_PROTO, classes)

    def assign(self, z):
        gap = z.unsqueeze(1) - self.prototypes.unsqueeze(0)
        dist = gap.pow(2).sum(dim=2)
        q = 1.0 / (1.0 + dist)
        return q / q.sum(dim=1, keepdim=True)

    def forward(self, x):
        q = self.assign(self.encoder(x))
        return self.votes(q * N_PROTO), q


def load():
    raw = load_digits()
    x = torch.tensor(raw.data, dtype=torch.float32) / 16.0
    y = torch.tensor(raw.target)
    return x, y


def main():
    torch.manual_seed(0)
    x, y = load()
    model = PrototypeNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    batch, epochs, step, start = 128, 20, 0, time.time()
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        total = 0.0
        for i in range(0, len(x) - batch + 1, batch):
            idx = order[i : i + batch]
            logits, q = model(x[idx])
            balance = (q.mean(0) * torch.log(q.mean(0) * N_PROTO)).sum()
            loss = F.cross_entropy(logits, y[idx]) + 0.1 * balance
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            step += 1
        if epoch % 3 == 0:
            print(f"epoch {epoch} loss {total / (len(x) // batch):.4f}")
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
