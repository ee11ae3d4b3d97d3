"""Loops of many steps in each of which the model is called in an unusual way, named on the command line.

replica: a copy that took over the whole `__dict__` lives in each step only. shared: another class's object has the
model's own `__dict__`. orphan: a copy lives on, the model is gone. nested: a frozen part of the model, which was called
by itself before the loop, runs inside the forward without gradients. reentrant: each backward holds others. inferring:
no gradients, then updates by hand. beside: another thread infers and trains. validate: batches of a loader that are
looked at with gradients. double: two steps of one optimizer. interrupted: Ctrl-C in a step, and on.
"""

import sys
import threading

import torch
from common import Data, batches, end, net, said
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

case, steps = sys.argv[1], int(sys.argv[2])
other = net()


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = net().eval(), net()

    def forward(self, x):
        with torch.no_grad():
            seen = self.body(x)
        return self.head(x) + seen


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        x = x.clone().requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(x)


class Twice(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def copied(module, kind=None):
    found = object.__new__(kind or type(module))
    found.__dict__ = module.__dict__ if kind else module.__dict__.copy()
    if not kind:
        found.__dict__["_modules"] = other._modules
    return found


def replicated(x):
    replica = copied(model)
    return model(x) + replica(x)


def work():
    mine = net()
    its = torch.optim.SGD(mine.parameters(), lr=0.1)
    begun.set()
    while not done.is_set():
        with torch.no_grad():
            model(torch.ones(2, 4))
        mine(torch.ones(2, 4)).sum().backward()
        its.step()


model = {"nested": Frozen, "reentrant": Reentrant}.get(case, net)()
run = model
if case == "nested":
    for x, _ in batches(2):
        print("alone", model.body(x).mean().item())
if case == "inferring":
    with torch.no_grad():
        for x, _ in batches(steps):
            print("out", model(x).mean().item())
    for x, y in batches(9):
        said(loss := (model(x) - y).square().mean()).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.01 * p.grad)
                p.grad = None
    end(model)
    sys.exit()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begun, done = threading.Event(), threading.Event()
beside = threading.Thread(target=work)
if case == "replica":
    run = replicated
if case == "shared":
    run = copied(model, Twice)
for at, (x, y) in enumerate(batches(steps)):
    if case == "orphan" and at == 9:
        run = copied(model)
        model = None
    if case == "beside" and at == 41:
        beside.start()
        begun.wait()
    if case == "validate" and at % 10 == 9:
        print("mean", sum(x.mean().item() for x, _ in DataLoader(Data(), 1)))
    said(loss := ((model(x) + run(x) if case == "shared" else run(x)) - y).square().mean())
    loss.backward()
    try:
        optimizer.step()
        if case == "double":
            optimizer.step()
        if case == "interrupted" and at % 7 == 3:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        print("interrupted")
    optimizer.zero_grad()
done.set()
if beside.is_alive():
    beside.join()
end(*(one for one in (model, other) if one is not None))
