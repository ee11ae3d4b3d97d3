"""A loop long enough for a look at memory: `plain`, or with a habit of its own."""

import sys

import torch
from common import Data, batches, end, net, said
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

STEPS = 60
kind = sys.argv[1]


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Logger:
    def __init__(self):
        self.seen = []


def fed():
    while True:
        yield from DataLoader(Data(), 6)


def wide():
    return nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 1))


def train(rows):
    model = net() if kind in {"gan", "compiled"} else wide()
    if kind == "compiled":
        model.compile(backend="eager")
    optimizer = torch.optim.Adam(model.parameters())
    kept, logger = [], Logger()
    for _, (x, y) in zip(range(STEPS if kind != "short" else 4), rows, strict=False):
        out = model(x)
        hidden = model[0](x) if kind == "leak" else None  # line: hidden
        loss = said((out - y).square().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if kind == "leak":
            kept.append(hidden.detach())
        elif kind == "graph":
            kept.append(model(x).square().mean())  # line: graph
        elif kind == "attribute":
            logger.seen.append({"out": model[0](x).detach()})  # line: attribute
        elif kind == "locals":
            print(sorted(locals()))
    end(model)
    print(len(kept), len(logger.seen))


def gan():
    generator, critic = wide(), net()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (generator, critic)]
    for _ in range(STEPS):
        fake = generator(torch.randn(6, 4)).expand(6, 4)
        optimizers[1].zero_grad()
        said(critic(fake.detach()).square().mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        said(-critic(fake).mean()).backward()
        optimizers[0].step()
    end(generator, critic)


def lbfgs():
    model = wide()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    for x, y in batches(STEPS):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        said(optimizer.step(closure))
    end(model)


def infer():
    model = wide().eval()
    with torch.inference_mode():
        for x, _ in batches(STEPS):
            print("out", repr(model(x).sum().item()))
    end(model)


if kind in {"gan", "lbfgs", "infer"}:
    {"gan": gan, "lbfgs": lbfgs, "infer": infer}[kind]()
elif kind == "mode":
    with Passing():
        train(fed())
else:
    train(batches(STEPS) if kind == "unfed" else fed())
if kind == "exits":
    sys.exit(3)
if kind == "raises":
    raise ValueError("the script's own")
