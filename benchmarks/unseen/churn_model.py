import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import make_classification
from sklearn.metrics import average_precision_score, classification_report, roc_auc_score


class ChurnNet(nn.Module):
    def __init__(self, n_features, hidden=512):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_features, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(1)


class Meter:
    def __init__(self):
        self.rows = []

    def update(self, logits, target):
        prob = torch.sigmoid(logits).detach().numpy()
        y = target.numpy().astype(int)
        report = classification_report(y, prob > 0.5, output_dict=True, zero_division=0)
        self.rows.append(
            {
                "auc": roc_auc_score(y, prob),
                "ap": average_precision_score(y, prob),
                "f1": report["macro avg"]["f1-score"],
            }
        )

    def summary(self):
        return {k: float(np.mean([r[k] for r in self.rows[-20:]])) for k in self.rows[0]}


def load_data():
    x, y = make_classification(n_samples=8000, n_features=60, n_informative=20, random_state=0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def train_epoch(model, x, y, optimizer, criterion, meter, batch_size=400):
    model.train()
    perm = torch.randperm(len(x))
    for start in range(0, len(x), batch_size):
        idx = perm[start : start + batch_size]
        xb, yb = x[idx], y[idx]
        logits = model(xb)
        loss = criterion(logits, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(logits, yb)


def main():
    torch.manual_seed(0)
    x, y = load_data()
    x = (x - x.mean(0)) / x.std(0)
    model = ChurnNet(x.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    meter = Meter()
    for epoch in range(4):
        train_epoch(model, x, y, optimizer, criterion, meter)
        print(epoch, meter.summary())


if __name__ == "__main__":
    main()
