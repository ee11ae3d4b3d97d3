"""A model that is called by a method of its own, and trained by another; a target of it runs without gradients."""

import torch
from common import X, said
from torch import nn


class Base(nn.Module):
    def hidden(self, x):
        for layer in self.layers:
            x = layer(x).sin().cos().tanh()  # between
        return x


class Field(Base):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 64), *[nn.Linear(64, 64) for _ in range(3)]])

    def forward(self, x):
        return self.hidden(x)

    def loss(self, x):
        return self.forward(x).square().mean().sin()  # behind

    def fit(self, steps):
        optimizer = torch.optim.SGD(self.parameters(), 0.01)
        for _ in range(steps):
            busy(3000)  # own
            optimizer.zero_grad()
            said(loss := self.loss(x)).backward()
            optimizer.step()


def busy(count):
    return sum(range(count))


x = X.repeat(100, 1)
torch.manual_seed(0)
Field().fit(60)
