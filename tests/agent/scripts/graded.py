"""Loops with a loader, an optimizer, and gradients where no update follows: graded.py KIND

evaluation: of a second loader, without `no_grad`, every ten updates; attack: the same, by many gradients of the inputs;
attacks: of the batch that is learned from, in each step; micro: 100 backwards for an update, with gradients clipped
between, and a frozen layer; aside: two batches a step, of which a module in eval mode sees the first; passes: an
evaluation of a second loader with neither `eval` nor `no_grad`; ahead: batches are fetched two ahead of the model; whole:
an update for all batches of a loader.
"""

import collections
import itertools
import sys

import torch
from common import Data, X, Y, end, net
from torch.utils.data import DataLoader

kind = sys.argv[1]
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def attack(x, y, times):
    for _ in range(times):
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((model(x) - y).square().mean(), x)
        x = (x + 0.01 * gradient.sign()).detach()
    return x


def loaded():
    while True:
        yield from DataLoader(Data(), batch_size=6)


def ahead(source):
    waiting = collections.deque(itertools.islice(source, 2))
    for batch in source:
        waiting.append(batch)
        yield waiting.popleft()


def batches_of():
    if kind == "whole":
        return itertools.repeat((X, Y))
    return ahead(loaded()) if kind == "ahead" else loaded()


if kind == "micro":
    model[0].requires_grad_(False)
again = loaded()
for step, (x, y) in zip(range(30), batches_of()):
    if kind == "aside":
        model.eval()
        seen = model(x)
        x, y = next(again)
        (seen.sum() * 0.001).backward()
        model.train()
    if kind == "attacks":
        model.eval()
        x = attack(x, y, 70)
        model.train()
    if kind == "whole":
        sum((model(x) - y).square().mean() for x, y in DataLoader(Data(), batch_size=6)).backward()
    for _ in range({"micro": 100, "whole": 0}.get(kind, 1)):
        (model(x) - y).square().mean().backward()
        if kind == "micro":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9 and kind == "passes":
        print(sum(model(x).sum().item() for x, _ in DataLoader(Data(), batch_size=8)))
    if step % 10 == 9 and kind in {"evaluation", "attack"}:
        model.eval()
        for x, y in DataLoader(Data(), batch_size=8):
            if kind == "attack":
                x = attack(x, y, 40)
            print(model(x).sum().item())
        model.train()
end(model)
