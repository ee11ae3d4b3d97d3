"""Two-tower retrieval: users and items, in-batch softmax."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

NUM_USERS = 60_000
NUM_ITEMS = 25_000
DIM = 32


class Tower(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        nn.init.normal_(self.table.weight, std=0.05)
        self.proj = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, ids):
        return F.normalize(self.proj(self.table(ids)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = Tower(NUM_USERS, DIM)
        self.item = Tower(NUM_ITEMS, DIM)
        self.temperature = 0.07

    def forward(self, users, items):
        return self.user(users) @ self.item(items).T / self.temperature


class Trainer:
    def __init__(self, steps, batch=256):
        self.steps = steps
        self.batch = batch
        self.model = TwoTower()
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=1e-3)]

    def sample(self):
        users = torch.randint(0, NUM_USERS, (self.batch,))
        items = torch.randint(0, NUM_ITEMS, (self.batch,))
        return users, items

    def train_step(self):
        users, items = self.sample()
        logits = self.model(users, items)
        loss = F.cross_entropy(logits, torch.arange(self.batch))
        for opt in self.optimizers:
            opt.zero_grad()
        loss.backward()
        for opt in self.optimizers:
            opt.step()
        return loss

    def fit(self):
        start = time.time()
        for step in range(self.steps):
            loss = self.train_step()
            if step % 20 == 0:
                print(f"[{time.time() - start:6.1f}s] step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    Trainer(int(os.environ.get("STEPS", 80))).fit()
