"""A branch of a model whose loss is thrown away, with --profile."""

import sys

import torch
from common import batches, end, said
from torch import nn

KIND = sys.argv[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.side, self.head = (
            nn.Linear(4, 64),
            nn.Sequential(nn.Linear(64, 64), nn.Tanh()),
            nn.Linear(64, 1),
        )

    def forward(self, x, y):
        hidden = self.body(x)
        aside = self.side(hidden).square().mean()  # thrown away
        return (self.head(hidden) - y).square().mean(), aside


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in [*batches()] * 9:
    loss, aside = model(x, y)
    if KIND == "used":
        loss = loss + aside
    said(loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(model)
