"""A branch that torch's compiler fails on, at the step that is given: late_branch.py STEP"""

import sys
from copy import copy

import torch
from common import batches, end, said
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    """As in HowToTrainYourMAMLPytorch: statistics by step, with copies that are taken before an evaluation."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mean = nn.Parameter(torch.zeros(3, 4), requires_grad=False)
        self.backup = torch.zeros(3, 4)

    def forward(self, x, at, backup):
        hidden, mean = self.layer(x), self.mean[at]
        if backup:
            self.backup.data = copy(self.mean.data)
        return x + functional.batch_norm(hidden, mean, torch.ones(4), training=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Norm() for _ in range(3)])

    def forward(self, x, at, backup):
        for block in self.blocks:
            x = block(x, at, backup)
        return x


model = Net()
optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.05)
for step, (x, _) in enumerate(batches()):
    optimizer.zero_grad()
    said(loss := model(x, step % 3, step == int(sys.argv[1])).square().mean()).backward()
    optimizer.step()
end(model)
