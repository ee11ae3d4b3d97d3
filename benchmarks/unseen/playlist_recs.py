from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    n_users: int = 30_000
    n_tracks: int = 160_000
    dim: int = 64
    batch_size: int = 1024
    steps_per_epoch: int = 50
    epochs: int = 3
    lr: float = 2e-3
    reg: float = 1e-4
    log_every: int = 25
    seed: int = 7


class BPR(nn.Module):
    """Matrix factorisation trained with Bayesian personalised ranking."""

    def __init__(self, cfg):
        super().__init__()
        self.users = nn.Embedding(cfg.n_users, cfg.dim)
        self.tracks = nn.Embedding(cfg.n_tracks, cfg.dim)
        nn.init.normal_(self.users.weight, std=0.05)
        nn.init.normal_(self.tracks.weight, std=0.05)
        self.reg = cfg.reg

    def forward(self, user, liked, other):
        u, p, n = self.users(user), self.tracks(liked), self.tracks(other)
        margin = (u * (p - n)).sum(-1)
        penalty = u.pow(2).sum(-1) + p.pow(2).sum(-1) + n.pow(2).sum(-1)
        return -F.logsigmoid(margin).mean() + self.reg * penalty.mean()

    @torch.no_grad()
    def auc(self, user, liked, other):
        u = self.users(user)
        return ((u * self.tracks(liked)).sum(-1) > (u * self.tracks(other)).sum(-1)).float().mean().item()


def sample_plays(cfg, n, rng):
    """Users listen mostly to tracks of their own taste cluster; popularity is long-tailed."""
    user = rng.integers(0, cfg.n_users, n)
    pop = np.minimum(rng.zipf(1.3, n), cfg.n_tracks // 32) - 1
    liked = (pop * 32 + user % 32) % cfg.n_tracks
    return torch.from_numpy(np.stack([user, liked], 1))


def run_epoch(model, optimizer, plays, cfg, epoch):
    order = torch.randperm(len(plays))
    for step in range(cfg.steps_per_epoch):
        batch = plays[order[step * cfg.batch_size : (step + 1) * cfg.batch_size]]
        other = torch.randint(0, cfg.n_tracks, (len(batch),))
        loss = model(batch[:, 0], batch[:, 1], other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % cfg.log_every == 0:
            print(f"epoch {epoch} step {step} bpr {loss.item():.4f}")


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    plays = sample_plays(cfg, cfg.batch_size * cfg.steps_per_epoch, rng)
    held_out = sample_plays(cfg, 10_000, rng)
    negatives = torch.randint(0, cfg.n_tracks, (len(held_out),))

    model = BPR(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, fused=True)
    for epoch in range(cfg.epochs):
        run_epoch(model, optimizer, plays, cfg, epoch)
        print(f"epoch {epoch} held-out auc {model.auc(held_out[:, 0], held_out[:, 1], negatives):.4f}")


if __name__ == "__main__":
    main()
