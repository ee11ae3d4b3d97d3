"""Several optimizers: `gan D G` steps D times the one and G times the other; `together`; `folds`, one after another."""

import sys

import torch
from common import STEPS, batches, end, net, said

kind, counts = sys.argv[1], [int(n) for n in sys.argv[2:]]


def optimizer_of(*models):
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)


def turn(out, y, *optimizers):
    said(loss := (out - y).square().mean())
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


if kind == "gan":
    critic, maker = net(), torch.nn.Linear(4, 4)
    steps = optimizer_of(critic), optimizer_of(maker)
    for x, y in batches():
        for _ in range(counts[0]):
            turn(critic(x) - critic(maker(x).detach()), y, steps[0])
        for _ in range(counts[1]):
            turn(critic(maker(x)), y, steps[1])
    end(critic, maker)
elif kind == "together":
    one, two = net(), torch.nn.Linear(1, 1)
    steps = optimizer_of(one), optimizer_of(two)
    for x, y in batches():
        turn(two(one(x)), y, *steps)
    end(one, two)
elif kind == "folds":  # a new model and optimizer each, the old one gone (0) or kept (1)
    kept = []
    for _ in range(3):
        model = net()
        optimizer = optimizer_of(model)
        for x, y in batches():
            turn(model(x), y, optimizer)
        if counts[0]:
            kept.append(optimizer)
        end(model)
elif kind == "unused":
    model, other = net(), net()
    optimizer, never = optimizer_of(model), optimizer_of(other)
    for x, y in batches(STEPS + 8):
        turn(model(x), y, optimizer)
    end(model, other)
elif kind == "lbfgs":
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for x, y in batches():

        def closure(x=x, y=y):
            optimizer.zero_grad()
            said(loss := (model(x) - y).square().mean())
            loss.backward()
            return loss

        optimizer.step(closure)
    end(model)
