import os

import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

STEPS = int(os.environ.get("STEPS", 80))


def make_transactions(n=60_000, n_features=64):
    g = torch.Generator().manual_seed(9)
    x = torch.randn(n, n_features, generator=g)
    w = torch.randn(n_features, generator=g)
    score = x @ w / n_features**0.5 + 0.7 * torch.randn(n, generator=g)
    return TensorDataset(x, (score > 1.2).float())


class FraudModel(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(n_features),
            nn.Linear(n_features, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(-1)


class Runner:
    def __init__(self, model, loader):
        self.model = model
        self.loader = loader
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
        self.log = []

    def batches(self):
        while True:
            yield from self.loader

    def report(self, logits, y):
        prob = torch.sigmoid(logits.detach()).numpy()
        truth = y.numpy()
        auc = roc_auc_score(truth, prob)
        ap = average_precision_score(truth, prob)
        f1 = f1_score(truth, prob > 0.5, zero_division=0)
        return {"auc": auc, "ap": ap, "f1": f1}

    def run(self, steps):
        for step, (x, y) in zip(range(steps), self.batches()):
            logits = self.model(x)
            loss = self.criterion(logits, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            metrics = self.report(logits, y)
            self.log.append(metrics)
            if step % 20 == 0:
                print(step, loss.item(), metrics)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = make_transactions()
    sampler = BatchSampler(RandomSampler(data), batch_size=4096, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    Runner(FraudModel(64), loader).run(STEPS)
