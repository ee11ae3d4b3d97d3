"""Second stage for the meter reader: a new classifier on the stage-one encoder."""

import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ENCODER_WEIGHTS = os.environ.get("ENCODER_WEIGHTS", "")


def load_data():
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    x = F.interpolate(x, size=(32, 32), mode="bilinear", align_corners=False)
    y = torch.tensor(y)
    train, test = train_test_split(range(len(y)), test_size=0.15, random_state=0)
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


class Encoder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        layers, channels = [], 1
        for i in range(4):
            out = width * min(2 ** (i // 2), 2)
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU()]
            if i % 2:
                layers.append(nn.MaxPool2d(2))
            channels = out
        self.layers = nn.Sequential(*layers)
        self.dim = channels * 16

    def forward(self, x):
        return F.adaptive_avg_pool2d(self.layers(x), 4).flatten(1)


class MeterReader(nn.Module):
    def __init__(self, n_classes=10):
        super().__init__()
        self.encoder = Encoder()
        if ENCODER_WEIGHTS:
            self.encoder.load_state_dict(torch.load(ENCODER_WEIGHTS))
        self.head = nn.Sequential(
            nn.Linear(self.encoder.dim, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, n_classes)
        )

    def forward(self, x):
        return self.head(self.encoder(x))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(0)
    train, test = load_data()
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)
    test_loader = DataLoader(test, batch_size=64)
    model = MeterReader()
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    for epoch in range(4):
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch} accuracy {evaluate(model, test_loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
