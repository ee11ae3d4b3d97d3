"""Two-tower book recommender, in-batch softmax, recall@20 on held-out users."""

import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(3)
torch.set_float32_matmul_precision("high")

USERS, ITEMS, PAIRS = 60_000, 16_384, 2_000_000
BATCH, STEPS, EVAL_EVERY, TOP = 12_288, 500, 25, 20


class Tower(nn.Module):
    def __init__(self, count, dim=96, hidden=512, out=128):
        super().__init__()
        self.table = nn.Embedding(count, dim)
        self.net = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, out))
        nn.init.normal_(self.table.weight, std=0.05)

    def forward(self, ids):
        return F.normalize(self.net(self.table(ids)), dim=-1)


def make_pairs():
    taste_u = torch.randint(64, (USERS,), device=device)
    user = torch.randint(USERS, (PAIRS,), device=device)
    item = (taste_u[user] * (ITEMS // 64) + torch.randint(ITEMS // 64, (PAIRS,), device=device)) % ITEMS
    return user, item


def pick_eval(user, item, count=1536):
    chosen = torch.randperm(PAIRS, device=device)[:count]
    return user[chosen], item[chosen]


@torch.no_grad()
def recall(users, items, eval_user, eval_item):
    users.eval()
    items.eval()
    catalogue = items(torch.arange(ITEMS, device=device))
    scores = users(eval_user) @ catalogue.T
    scores = scores.cpu().numpy()
    best = np.argsort(-scores, axis=1)[:, :TOP]
    hits = (best == eval_item.cpu().numpy()[:, None]).any(axis=1)
    users.train()
    items.train()
    return float(hits.mean())


def train():
    user, item = make_pairs()
    eval_user, eval_item = pick_eval(user, item)
    users, items = Tower(USERS).to(device), Tower(ITEMS).to(device)
    params = list(users.parameters()) + list(items.parameters())
    opt = torch.optim.Adam(params, lr=1e-3, fused=True)
    target = torch.arange(BATCH, device=device)
    popularity = torch.bincount(item, minlength=ITEMS).float().div_(PAIRS).clamp_(min=1e-8).log_()
    start = time.time()
    for step in range(1, STEPS + 1):
        pick = torch.randint(PAIRS, (BATCH,), device=device)
        u, i = user[pick], item[pick]
        logits = users(u) @ items(i).T
        logits = logits * 20.0 - popularity[i]
        loss = F.cross_entropy(logits, target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % EVAL_EVERY == 0:
            score = recall(users, items, eval_user, eval_item)
            if step % 100 == 0:
                print(f"{step:4d} loss {loss.item():.3f} recall@{TOP} {score:.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    train()
