from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    users: int = 220_000
    items: int = 60_000
    dim: int = 32
    hidden: tuple = (192, 96)
    interactions: int = 1024 * 35
    batch: int = 1024
    negatives: int = 1
    epochs: int = 3
    lr: float = 1e-3
    seed: int = 11


class NCF(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.user = nn.Embedding(cfg.users, cfg.dim)
        self.item = nn.Embedding(cfg.items, cfg.dim)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)
        layers, width = [], cfg.dim * 2
        for h in cfg.hidden:
            layers += [nn.Linear(width, h), nn.ReLU()]
            width = h
        self.mlp = nn.Sequential(*layers)
        self.out = nn.Linear(width + cfg.dim, 1)

    def forward(self, u, i):
        eu, ei = self.user(u), self.item(i)
        deep = self.mlp(torch.cat([eu, ei], dim=1))
        return self.out(torch.cat([deep, eu * ei], dim=1)).squeeze(1)


def load_interactions(cfg):
    rng = np.random.default_rng(cfg.seed)
    users = rng.zipf(1.3, cfg.interactions) % cfg.users
    taste = users % 97
    items = (rng.zipf(1.2, cfg.interactions) * 97 + taste) % cfg.items
    pairs = torch.from_numpy(np.stack([users, items], axis=1).astype(np.int64))
    pairs = pairs[torch.randperm(len(pairs))]
    return pairs[:-1024], pairs[-1024:]


@torch.no_grad()
def hit_rate(model, held_out, cfg, candidates=50, k=10):
    model.eval()
    probe = held_out[:200]
    items = torch.randint(cfg.items, (len(probe), candidates))
    items[:, 0] = probe[:, 1]
    users = probe[:, :1].expand(-1, candidates)
    scores = model(users.reshape(-1), items.reshape(-1)).view(len(probe), candidates)
    rank = (scores > scores[:, :1]).sum(dim=1)
    model.train()
    return (rank < k).float().mean().item()


def fit(cfg):
    torch.manual_seed(cfg.seed)
    train, held_out = load_interactions(cfg)
    model = NCF(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    step = 0
    for epoch in range(cfg.epochs):
        total = torch.zeros(())
        for idx in torch.randperm(len(train)).split(cfg.batch):
            u, pos = train[idx].unbind(dim=1)
            neg = torch.randint(cfg.items, (len(u) * cfg.negatives,))
            users = torch.cat([u, u.repeat(cfg.negatives)])
            labels = torch.cat([torch.ones(len(u)), torch.zeros(len(neg))])
            logits = model(users, torch.cat([pos, neg]))
            loss = F.binary_cross_entropy_with_logits(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            step += 1
            if step % 25 == 0:
                print(f"step {step} loss {total.item() / (step - epoch * 34):.4f}")
        print(f"epoch {epoch} HR@10 {hit_rate(model, held_out, cfg):.3f}")


if __name__ == "__main__":
    fit(Config())
