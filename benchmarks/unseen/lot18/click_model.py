"""Click-through-rate model (hashed fields, factorisation machine + MLP) on a simulated ad log."""

import argparse
import logging
import time

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn

log = logging.getLogger("ctr")


class AdLog:
    """Simulated impressions: categorical fields hashed into one table, and a click flag."""

    def __init__(self, rows, fields, buckets, seed=0):
        rng = np.random.default_rng(seed)
        raw = rng.zipf(1.3, size=(rows, fields)) % (buckets // fields)
        offsets = np.arange(fields) * (buckets // fields)
        self.ids = torch.from_numpy(raw + offsets)
        taste = rng.normal(0, 0.6, buckets)
        score = taste[self.ids.numpy()].sum(1) - 1.2
        self.click = torch.from_numpy((rng.random(rows) < 1 / (1 + np.exp(-score))).astype(np.float32))

    def epoch(self, batch, generator):
        order = torch.randperm(len(self.click), generator=generator)
        for part in order.split(batch):
            yield self.ids[part], self.click[part]


class DeepFM(nn.Module):
    def __init__(self, fields, buckets, dim=8, hidden=64):
        super().__init__()
        self.linear = nn.EmbeddingBag(buckets, 1, mode="sum")
        self.factors = nn.Embedding(buckets, dim)
        nn.init.normal_(self.factors.weight, std=0.05)
        nn.init.zeros_(self.linear.weight)
        self.deep = nn.Sequential(
            nn.Linear(fields * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, ids):
        v = self.factors(ids)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return self.linear(ids).squeeze(1) + pairs + self.deep(v.flatten(1)).squeeze(1)


class RunningReport:
    """Keeps what the model said during the epoch and how good it was."""

    def __init__(self):
        self.scores, self.clicks = [], []
        self.auc = self.nll = float("nan")

    def add(self, logits, clicks):
        self.scores.append(logits.detach().sigmoid().double().numpy())
        self.clicks.append(clicks.numpy())

    def refresh(self):
        y, p = np.concatenate(self.clicks), np.concatenate(self.scores)
        self.auc = roc_auc_score(y, p)
        self.nll = log_loss(y, p)


def run(args):
    torch.manual_seed(args.seed)
    data = AdLog(args.rows, args.fields, args.buckets)
    gen = torch.Generator().manual_seed(args.seed)
    model = DeepFM(args.fields, args.buckets)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
    criterion = nn.BCEWithLogitsLoss()
    step, began = 0, time.perf_counter()
    for epoch in range(args.epochs):
        report = RunningReport()
        for ids, clicks in data.epoch(args.batch, gen):
            logits = model(ids)
            loss = criterion(logits, clicks)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            report.add(logits, clicks)
            report.refresh()
            if step % args.log_every == 0:
                log.info("epoch %d step %d auc %.4f nll %.4f", epoch, step, report.auc, report.nll)
    log.info("%d steps, %.2f ms/step", step, 1000 * (time.perf_counter() - began) / step)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=120000)
    p.add_argument("--fields", type=int, default=16)
    p.add_argument("--buckets", type=int, default=16000)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--log-every", type=int, default=50)
    p.add_argument("--seed", type=int, default=7)
    run(p.parse_args())
