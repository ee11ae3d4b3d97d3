"""A process that does something first, and two forked from it that train: `infers`, `tries` a forward, or `trains`."""

import multiprocessing
import sys

import torch
from common import X, batches, net

torch.set_num_threads(1)


def train(steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(steps):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("last", repr(loss.item()), flush=True)


if sys.argv[1] == "infers":
    model = net()
    with torch.no_grad():
        for _ in range(20):
            model(X)
elif sys.argv[1] == "tries":
    net()(X)
else:
    train(12)
for steps in (80, 90):
    child = multiprocessing.get_context("fork").Process(target=train, args=(steps,))
    child.start()
    child.join()
