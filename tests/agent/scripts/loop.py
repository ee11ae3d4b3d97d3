"""Loops without a DataLoader whose models, optimizers and updates are of every kind."""

import sys

import torch
from common import STEPS, batches, end, net, said
from torch import nn
from torch.utils.checkpoint import checkpoint

kind = sys.argv[1]


class Own:
    """An optimizer that torch knows nothing of."""

    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data.add_(p.grad, alpha=-self.lr)


class Sub(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LazyLinear(1)

    def forward(self, batch):
        return self.inner(batch["x"])


class Passing(nn.Module):
    """Passes attributes on to the module that it wraps, as Lightning Fabric's wrapper does."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.ready = True

    def forward(self, x):
        return self.inner(x)

    def __setattr__(self, name, value):
        if "ready" in self.__dict__:
            setattr(self._modules["inner"], name, value)
        else:
            super().__setattr__(name, value)


if kind == "patched":  # scripts that watch every module themselves
    usual, calls = nn.Module.__call__, []

    def watched(self, *args, **kwargs):
        calls.append(type(self))
        return usual(self, *args, **kwargs)

    nn.Module.__call__ = watched
first, second, weight = Lazy() if kind == "lazy" else net(), nn.Linear(1, 1), nn.Parameter(torch.ones(4, 1))
called = {
    "several": lambda x: second(first(x)),
    "forward": lambda x: first.forward(x),
    "functional": lambda x: x @ weight,
    "lazy": lambda x: first({"x": x}),
    "checkpoint": lambda x: checkpoint(first, x, use_reentrant=False),
    "passing": Passing(first),
    "script": torch.jit.script(first) if kind == "script" else None,
}.get(kind, first)
parameters = [*first.parameters(), *second.parameters(), weight]
optimizer = {"own": Own, "sub": Sub}.get(kind, torch.optim.SGD)(parameters, lr=0.1) if kind != "manual" else None
micro = 3 if kind == "accumulate" else 1
for at, (x, y) in enumerate(batches(STEPS * micro)):
    for _ in range(9 if kind == "rollout" and at % 3 == 2 else 0):  # a part of the model, called with gradients
        second(torch.ones(1, 1))
    said(loss := (called(x) - y).square().mean() / micro)
    loss.backward()
    if (at + 1) % micro == 0:
        if optimizer is not None:
            optimizer.step()
        for p in parameters:
            if optimizer is None and p.grad is not None:
                p.data.add_(p.grad, alpha=-0.1)
            p.grad = None
print(len(calls) if kind == "patched" else "")
end(first, second)
