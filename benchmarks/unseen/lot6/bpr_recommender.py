"""Matrix factorisation with a small tower, trained on pairwise ranking."""

import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

N_USERS, N_ITEMS = 2000, 6000


def make_interactions(per_user=40):
    rng = np.random.default_rng(1)
    popularity = 1.0 / np.arange(1, N_ITEMS + 1) ** 0.6
    cdf = np.cumsum(popularity / popularity.sum())
    items = np.searchsorted(cdf, rng.random((N_USERS, per_user)))
    items = np.minimum(items, N_ITEMS - 1)
    users = np.repeat(np.arange(N_USERS), per_user)
    return np.stack([users, items.ravel()], axis=1)


class PairDataset(Dataset):
    def __init__(self, interactions):
        self.pairs = interactions
        self.catalogue = np.arange(N_ITEMS)
        self.history = {}
        for user, item in interactions:
            self.history.setdefault(int(user), set()).add(int(item))

    def __len__(self):
        return len(self.pairs)

    def sample_negative(self, user):
        seen = self.history[user]
        unseen = [item for item in self.catalogue if item not in seen]
        return int(np.random.choice(unseen))

    def __getitem__(self, i):
        user, positive = int(self.pairs[i, 0]), int(self.pairs[i, 1])
        return user, positive, self.sample_negative(user)


class Ranker(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.users = nn.Embedding(N_USERS, dim)
        self.items = nn.Embedding(N_ITEMS, dim)
        self.tower = nn.Sequential(
            nn.Linear(dim * 2, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, user, item):
        x = torch.cat([self.users(user), self.items(item)], dim=-1)
        return self.tower(x).squeeze(-1)


def main():
    torch.manual_seed(0)
    data = PairDataset(make_interactions())
    loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=2, drop_last=True)
    model = Ranker()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    max_steps = 220
    running, start = 0.0, time.time()
    for step, (user, pos, neg) in enumerate(loader, 1):
        margin = model(user, pos) - model(user, neg)
        loss = -F.logsigmoid(margin).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        running += loss.item()
        if step % 30 == 0:
            print(f"step {step} loss {running / 30:.4f}")
            running = 0.0
        if step == max_steps:
            break
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
