"""Only forwards of a model with large linear layers. arguments: `tied`, `cache` or `weight`: what it does with them."""

import sys

import torch
from common import end
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(256, 256), nn.Linear(256, 256, bias=False), nn.Linear(256, 3)
        self.register_buffer("seen", torch.zeros(()))
        if "tied" in sys.argv:
            self.second.weight = self.first.weight

    def forward(self, x):
        if "cache" in sys.argv:
            self.seen += 1
        y = self.first(x).relu()
        return self.last(y @ self.second.weight.t() if "weight" in sys.argv else self.second(y))


model = Net().eval()
print("classes", type(model.first.weight).__name__)
with torch.no_grad():
    for _ in range(20):
        print("out", repr(model(torch.randn(4, 256)).sum().item()))
print("classes", type(model.first.weight).__name__, type(model.second.weight).__name__)
if len(sys.argv) > 1:
    end(model)
