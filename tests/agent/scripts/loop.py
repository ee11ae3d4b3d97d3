"""Loops without a DataLoader whose models, optimizers and updates are of every kind."""

import sys

import torch
from common import STEPS, batches, end, net, said
from torch import nn

kind = sys.argv[1]


class Own:
    """An optimizer that torch knows nothing of."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self):
        for p in self.parameters:
            p.data.add_(p.grad, alpha=-0.1)


class Sub(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LazyLinear(1)

    def forward(self, batch):
        return self.inner(batch["x"])


first, second = (Lazy() if kind == "lazy" else net()), nn.Linear(1, 1)
weight = nn.Parameter(torch.ones(4, 1))
parameters = [weight] if kind == "functional" else [*first.parameters(), *second.parameters()]
made = {"own": Own, "manual": Own}.get(kind, Sub if kind == "sub" else torch.optim.SGD)
optimizer = made(parameters) if made is Own else made(parameters, lr=0.1)
micro = 3 if kind == "accumulate" else 1
for at, (x, y) in enumerate(batches(STEPS * micro)):
    if kind == "several":
        out = second(first(x))
    elif kind == "forward":
        out = first.forward(x)
    elif kind == "functional":
        out = x @ weight
    else:
        out = first({"x": x} if kind == "lazy" else x)
    loss = said((out - y).square().mean() / micro)
    loss.backward()
    if (at + 1) % micro == 0:
        if kind == "manual":
            for p in first.parameters():
                p.data.add_(p.grad, alpha=-0.1)
        else:
            optimizer.step() if kind not in {"own"} else Own(first.parameters()).step()
        for p in parameters:
            p.grad = None
end(first, second)
