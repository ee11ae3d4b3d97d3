import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", 80))
FIELDS = 10
VALUES = 500


class ClickLog(Dataset):
    """One row a click; rows are packed in a single integer tensor."""

    def __init__(self, rows=600_000):
        g = torch.Generator().manual_seed(0)
        self.codes = torch.randint(0, VALUES, (rows, FIELDS), generator=g, dtype=torch.int32)
        self.clicked = (self.codes[:, 0] < self.codes[:, 1]).float()

    def __len__(self):
        return len(self.codes)

    def __getitems__(self, indices):
        i = torch.tensor(indices)
        return self.codes[i].long(), self.clicked[i]


class FactorizationMachine(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.linear = nn.Embedding(FIELDS * VALUES, 1)
        self.factors = nn.Embedding(FIELDS * VALUES, dim)
        self.register_buffer("offsets", torch.arange(FIELDS) * VALUES)
        self.deep = nn.Sequential(nn.Linear(FIELDS * dim, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, codes):
        codes = codes + self.offsets
        v = self.factors(codes)
        pair = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return self.linear(codes).sum((1, 2)) + pair + self.deep(v.flatten(1)).squeeze(1)


def fit(model, loader, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.BCEWithLogitsLoss()
    for step in range(steps):
        codes, clicked = next(iter(loader))
        loss = criterion(model(codes), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}, loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(ClickLog(), batch_size=512, shuffle=True, collate_fn=lambda b: b)
    fit(FactorizationMachine(), loader, STEPS)
