"""Steps of some milliseconds, every 30th with a long stop in `save`; or shapes that change, each compiled anew."""

import sys
import time

import torch
from common import said
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)


def save():
    time.sleep(0.5)  # line: save


def main(kind):
    torch.manual_seed(0)
    model = Net()
    if kind == "shapes":
        model.compile(backend="eager", dynamic=False)
        torch._dynamo.config.recompile_limit = 1000
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for at in range(1, 201 if kind == "shapes" else 151):
        x = torch.ones(2 + (max(0, at - 42) // 4 if kind == "shapes" else 0), 4)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said(loss)
        time.sleep(0.004)
        if at % 30 == 0 and kind == "saves":
            save()


if __name__ == "__main__":
    main(sys.argv[1])
