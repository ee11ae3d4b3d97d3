"""Online training of a card-fraud scorer on a stream of transactions."""

import time
from dataclasses import dataclass

import torch
from torch import nn

MERCHANTS, COUNTRIES, NUMERIC = 2000, 60, 24


@dataclass
class Config:
    batch: int = 512
    steps: int = 600
    lr: float = 1e-3
    report: int = 60
    seed: int = 21


class Stream:
    """Endless transactions: numeric features, a merchant, a country, fraud or not."""

    def __init__(self, cfg):
        self.g = torch.Generator().manual_seed(cfg.seed)
        self.batch = cfg.batch
        self.w = torch.randn(NUMERIC, generator=self.g) * 0.6
        self.risk = torch.randn(MERCHANTS, generator=self.g) * 0.8
        self.abroad = torch.randn(COUNTRIES, generator=self.g) * 0.5

    def __iter__(self):
        while True:
            x = torch.randn(self.batch, NUMERIC, generator=self.g)
            m = torch.randint(0, MERCHANTS, (self.batch,), generator=self.g)
            c = torch.randint(0, COUNTRIES, (self.batch,), generator=self.g)
            score = x @ self.w + self.risk[m] + self.abroad[c] + 0.5 * x[:, 0] * x[:, 1] - 3.5
            y = torch.rand(self.batch, generator=self.g) < torch.sigmoid(score)
            yield x, m, c, y.float()


class Scorer(nn.Module):
    def __init__(self, dim=16, width=256):
        super().__init__()
        self.merchant = nn.Embedding(MERCHANTS, dim)
        self.country = nn.Embedding(COUNTRIES, dim)
        self.body = nn.Sequential(
            nn.Linear(NUMERIC + 2 * dim, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x, m, c):
        return self.body(torch.cat([x, self.merchant(m), self.country(c)], dim=1)).squeeze(1)


class RankQuality:
    """Area under the ROC curve over everything scored so far."""

    def __init__(self):
        self.scores, self.labels = [], []

    def update(self, scores, labels):
        self.scores.append(scores.detach())
        self.labels.append(labels)

    def compute(self):
        s, y = torch.cat(self.scores), torch.cat(self.labels)
        y = y[torch.argsort(s)].double()
        pos = y.sum()
        neg = len(y) - pos
        ranks = torch.arange(1, len(y) + 1, dtype=torch.float64)
        return ((ranks * y).sum() - pos * (pos + 1) / 2) / (pos * neg)


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = Scorer()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.lossfn = nn.BCEWithLogitsLoss()
        self.quality = RankQuality()

    def training_step(self, batch):
        x, m, c, y = batch
        logits = self.model(x, m, c)
        loss = self.lossfn(logits, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.quality.update(torch.sigmoid(logits), y)
        return {"loss": loss.item(), "auc": self.quality.compute().item()}

    def fit(self, stream):
        start = time.perf_counter()
        for step, batch in zip(range(1, self.cfg.steps + 1), stream):
            logs = self.training_step(batch)
            if step % self.cfg.report == 0:
                print(f"{step:5d} " + " ".join(f"{k}={v:.4f}" for k, v in logs.items()))
        took = time.perf_counter() - start
        print(f"{self.cfg.steps} steps, {took:.1f} s, {1e3 * took / self.cfg.steps:.2f} ms a step")


if __name__ == "__main__":
    config = Config()
    Trainer(config).fit(Stream(config))
