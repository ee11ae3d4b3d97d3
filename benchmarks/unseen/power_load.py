"""Forecast of the power load with a recurrent network."""

import os

import torch
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", 80))


class LoadForecaster(nn.Module):
    def __init__(self, n_features, hidden):
        super().__init__()
        self.hidden = hidden
        self.cell = nn.LSTMCell(n_features, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        batch, length, _ = x.shape
        h = x.new_zeros(batch, self.hidden)
        c = x.new_zeros(batch, self.hidden)
        outputs = []
        for t in range(length):
            h, c = self.cell(x[:, t], (h, c))
            outputs.append(h)
        return self.head(torch.stack(outputs, dim=1)).squeeze(-1)


def hourly_series(n, features=12):
    t = torch.arange(n, dtype=torch.float32).unsqueeze(1)
    periods = torch.linspace(6, 400, features)
    x = torch.sin(t / periods) + 0.05 * torch.randn(n, features)
    return x, x.mean(1)


def sample(x, y, batch, length):
    start = torch.randint(0, len(x) - length - 1, (batch, 1))
    idx = start + torch.arange(length)
    return x[idx], y[idx + 1]


def train():
    torch.manual_seed(0)
    x, y = hourly_series(30_000)
    model = LoadForecaster(x.shape[1], hidden=32)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        xb, yb = sample(x, y, batch=8, length=168)
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: mse {loss.item():.4f}")


train()
