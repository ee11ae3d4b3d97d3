"""House price regression on a table which is held in memory."""

import math
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", 80))
BATCH_SIZE = 4096


def load_table(rows=200_000, columns=40):
    g = torch.Generator().manual_seed(12)
    x = torch.randn(rows, columns, generator=g)
    price = (x[:, :8].sum(1) + 0.3 * x[:, 8] * x[:, 9]).unsqueeze(1)
    price += 0.1 * torch.randn(rows, 1, generator=g)
    return x, price


class PriceNet(nn.Module):
    def __init__(self, columns, width=96):
        super().__init__()
        self.fc1 = nn.Linear(columns, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


torch.manual_seed(0)
features, prices = load_table()
dataset = TensorDataset(features, prices)
loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
model = PriceNet(features.shape[1])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
loss_fn = nn.HuberLoss()

step = 0
epochs = math.ceil(STEPS / len(loader))
for epoch in range(epochs):
    for x, y in loader:
        if step >= STEPS:
            break
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"epoch {epoch} step {step} huber {loss.item():.4f}")
        step += 1
print("steps done:", step)
