"""Next-item model over shopping sessions; item features are held for all workers."""

import multiprocessing as mp

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

ITEMS = 3000
FEATURES = 32
LENGTH = 12


def make_catalogue(rng):
    return {i: rng.standard_normal(FEATURES).astype(np.float32) for i in range(ITEMS)}


def make_sessions(rng, count):
    start = rng.integers(0, ITEMS, size=count)
    jumps = rng.integers(1, 9, size=(count, LENGTH))
    return (start[:, None] + np.cumsum(jumps, axis=1)) % ITEMS


class Sessions(Dataset):
    def __init__(self, sessions, catalogue, manager):
        self.sessions = sessions
        self.catalogue = manager.dict(catalogue)

    def __len__(self):
        return len(self.sessions)

    def __getitem__(self, index):
        items = self.sessions[index].tolist()
        rows = [self.catalogue[item] for item in items[:-1]]
        return torch.from_numpy(np.stack(rows)), items[-1]


class Ranker(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, ITEMS)

    def forward(self, x):
        h, _ = self.rnn(F.relu(self.inp(x)))
        return self.out(h[:, -1])


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    catalogue = make_catalogue(rng)
    sessions = make_sessions(rng, 16000)
    with mp.Manager() as manager:
        dataset = Sessions(sessions, catalogue, manager)
        loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2)
        model = Ranker()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(1):
            total = 0.0
            for step, (x, target) in enumerate(loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), target)
                loss.backward()
                optimizer.step()
                total += loss.item()
                if (step + 1) % 25 == 0:
                    print(f"epoch {epoch} step {step + 1} loss {total / (step + 1):.4f}")


if __name__ == "__main__":
    main()
