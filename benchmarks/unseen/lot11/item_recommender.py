"""Matrix-factorisation recommender trained on implicit feedback."""

import time

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self, users, items, dim=32):
        super().__init__()
        self.users = nn.Embedding(users, dim)
        self.items = nn.Embedding(items, dim)
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.items.weight, std=0.1)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1)


class Interactions:
    def __init__(self, users, items, batch, seed=0):
        self.users = users
        self.items = items
        self.batch = batch
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, high, shape):
        return torch.randint(high, shape, generator=self.generator)

    def batches(self, n):
        for _ in range(n):
            user = self.draw(self.users, (self.batch,))
            liked = (user * 7 + self.draw(50, (self.batch,))) % self.items
            other = self.draw(self.items, (self.batch, 8))
            yield user, liked, other


def bpr_loss(model, user, liked, other):
    positive = model(user, liked).unsqueeze(1)
    negative = model(user.unsqueeze(1), other)
    return -nn.functional.logsigmoid(positive - negative).mean()


def train_epoch(model, optimizer, batches):
    total, count = 0.0, 0
    for user, liked, other in batches:
        optimizer.zero_grad()
        loss = bpr_loss(model, user, liked, other)
        loss.backward()
        optimizer.step()
        total += loss.item()
        count += 1
    return total / count


def main():
    torch.manual_seed(0)
    users, items = 150_000, 50_000
    model = Recommender(users, items)
    data = Interactions(users, items, batch=1024)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    start = time.time()
    for epoch in range(7):
        loss = train_epoch(model, optimizer, data.batches(30))
        print(f"epoch {epoch} loss {loss:.4f} ({time.time() - start:.1f}s)")


if __name__ == "__main__":
    main()
