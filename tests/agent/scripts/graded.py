"""Loops with a loader, an optimizer, and gradients where no update follows: graded.py KIND

evaluation: of a second loader, without `no_grad`, every ten updates; attack: the same, by many gradients of the inputs;
attacks: of the batch that is learned from, in each step; micro: 100 backwards for an update, with gradients clipped
between, and a frozen layer; aside: two batches a step, of which a module in eval mode sees the first.
"""

import sys

import torch
from common import Data, end, net
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


if kind == "micro":
    model[0].requires_grad_(False)
again = loaded()
for step, (x, y) in zip(range(30), loaded()):
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
    for _ in range(100 if kind == "micro" else 1):
        (model(x) - y).square().mean().backward()
        if kind == "micro":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9 and kind in {"evaluation", "attack"}:
        model.eval()
        for x, y in DataLoader(Data(), batch_size=8):
            if kind == "attack":
                x = attack(x, y, 40)
            print(model(x).sum().item())
        model.train()
end(model)
