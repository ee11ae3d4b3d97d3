"""Click prediction from hashed impression logs (wide and deep)."""

import random
import zlib

import torch
import torch.nn as nn

BUCKETS = 300_000
FIELDS = ("site", "ad", "campaign", "city", "device", "hour")
SIZES = {"site": 40_000, "ad": 90_000, "campaign": 6_000, "city": 3_000, "device": 400, "hour": 24}


def hash_token(field, value):
    return zlib.crc32(f"{field}={value}".encode()) % BUCKETS


def zipf_draw(rng, n):
    return min(n - 1, int(n ** rng.random()) - 1)


def read_log(n, seed):
    """Impressions as lists of bucket ids, plus a click flag."""
    rng = random.Random(seed)
    ids, clicks = [], []
    for _ in range(n):
        values = {f: zipf_draw(rng, SIZES[f]) for f in FIELDS}
        row = [hash_token(f, v) for f, v in values.items()]
        row.append(hash_token("site*ad", (values["site"], values["ad"])))
        row.append(hash_token("city*hour", (values["city"], values["hour"])))
        score = -1.5 + 1.2 * (values["campaign"] % 3 == 0) + 0.8 * (values["hour"] > 17) - 0.6 * (values["device"] % 2)
        clicks.append(float(rng.random() < 1 / (1 + 2.718281828**-score)))
        ids.append(row)
    return torch.tensor(ids), torch.tensor(clicks)


class WideDeep(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        slots = len(FIELDS) + 2
        self.wide = nn.EmbeddingBag(BUCKETS, 1, mode="sum")
        self.deep = nn.Embedding(BUCKETS, width)
        nn.init.zeros_(self.wide.weight)
        nn.init.normal_(self.deep.weight, std=0.02)
        self.mlp = nn.Sequential(
            nn.Linear(slots * width, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, ids):
        deep = self.mlp(self.deep(ids).flatten(1))
        return (self.wide(ids) + deep).squeeze(1)


def minibatches(n, size):
    while True:
        order = torch.randperm(n)
        for start in range(0, n - size + 1, size):
            yield order[start : start + size]


def run(steps=800, batch=512):
    torch.manual_seed(21)
    ids, clicks = read_log(60_000, seed=21)
    model = WideDeep()
    loss_fn = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)

    window = []
    for step, index in enumerate(minibatches(len(ids), batch)):
        if step == steps:
            break
        logits = model(ids[index])
        loss = loss_fn(logits, clicks[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        window.append(loss.item())
        if len(window) == 100:
            print(f"{step + 1:5d} impressions x{batch}: logloss {sum(window) / 100:.4f}")
            window.clear()


if __name__ == "__main__":
    run()
