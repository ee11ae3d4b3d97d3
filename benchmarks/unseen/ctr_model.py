import logging
from types import SimpleNamespace

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("ctr")

cfg = SimpleNamespace(
    fields=16,
    cardinality=2000,
    dim=16,
    dense=13,
    hidden=(256, 128),
    batch_size=1024,
    rows=102400,
    valid_rows=8192,
    epochs=2,
    lr=1e-3,
    log_every=25,
)


def make_rows(n, seed):
    rng = np.random.default_rng(seed)
    cats = (rng.zipf(1.4, size=(n, cfg.fields)) % cfg.cardinality).astype(np.int64)
    dense = rng.standard_normal((n, cfg.dense)).astype(np.float32)
    logit = dense[:, 0] - 0.7 * dense[:, 1] + np.sin(cats[:, 0]) + 0.5 * np.cos(cats[:, 1]) - 1.0
    clicks = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return torch.from_numpy(cats), torch.from_numpy(dense), torch.from_numpy(clicks)


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offsets", torch.arange(cfg.fields) * cfg.cardinality)
        self.emb = nn.Embedding(cfg.fields * cfg.cardinality, cfg.dim)
        self.lin = nn.Embedding(cfg.fields * cfg.cardinality, 1)
        nn.init.normal_(self.emb.weight, std=0.01)
        nn.init.zeros_(self.lin.weight)
        layers, width = [], cfg.fields * cfg.dim + cfg.dense
        for h in cfg.hidden:
            layers += [nn.Linear(width, h), nn.ReLU()]
            width = h
        self.mlp = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, cats, dense):
        idx = cats + self.offsets
        e = self.emb(idx)
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1)
        deep = self.mlp(torch.cat([e.flatten(1), dense], 1)).squeeze(1)
        return self.lin(idx).sum((1, 2)) + fm + deep


class EpochStats:
    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.labels, self.losses = [], [], []

    def update(self, logits, labels, loss):
        self.scores.append(torch.sigmoid(logits.detach()).numpy())
        self.labels.append(labels.numpy())
        self.losses.append(loss.item())

    def compute(self):
        auc = roc_auc_score(np.concatenate(self.labels), np.concatenate(self.scores))
        return {"loss": float(np.mean(self.losses)), "auc": float(auc)}


def run():
    torch.manual_seed(0)
    cats, dense, clicks = make_rows(cfg.rows, seed=1)
    v_cats, v_dense, v_clicks = make_rows(cfg.valid_rows, seed=2)
    model = DeepFM()
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, fused=True)
    criterion = nn.BCEWithLogitsLoss()
    stats, step = EpochStats(), 0
    for epoch in range(cfg.epochs):
        stats.reset()
        for idx in torch.randperm(cfg.rows).split(cfg.batch_size):
            logits = model(cats[idx], dense[idx])
            loss = criterion(logits, clicks[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stats.update(logits, clicks[idx], loss)
            summary = stats.compute()
            step += 1
            if step % cfg.log_every == 0:
                log.info("step %d loss %.4f auc %.4f", step, summary["loss"], summary["auc"])
        with torch.no_grad():
            scores = torch.sigmoid(model(v_cats, v_dense))
        log.info("epoch %d valid auc %.4f", epoch, roc_auc_score(v_clicks.numpy(), scores.numpy()))


run()
