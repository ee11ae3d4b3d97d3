"""A simple loop of many steps, and what may turn up in it: step by step, as `at:what` on the command line.

eval: an evaluation of a model; graded: with gradients; part: of a part of it; load: of a loader; built: another optimizer is made; other: one
that was made at the start steps; compile: torch compiles something; silent: no optimizer steps from here on; copy: a
copy that took over the whole `__dict__` is called; raise: the optimizer fails, and the script goes on; thread: another
thread trains a little; fork: a child trains a little; infer: a forward without gradients of a model that trains.
"""

import os
import sys
import threading

import torch
from common import ROWS, Data, batches, end, net, said
from torch.utils.data import DataLoader


def little():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(3):
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


steps, *events = sys.argv[1:]
model, second = net(), net()
optimizer, other = torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.SGD(second.parameters(), lr=0.1)
for at, (x, y) in enumerate(batches(int(steps))):
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    now = [event.partition(":")[2] for event in events if int(event.partition(":")[0]) == at]
    if "silent" in now:
        for p in model.parameters():
            p.grad = None
        for x, y in batches(200):
            (model(x) - y).square().mean().backward()
        break
    if "raise" in now:
        optimizer.param_groups.append({})  # without parameters: `step` raises
    try:
        optimizer.step()
    except KeyError as error:
        print("caught", error)
        optimizer.param_groups.pop()
    optimizer.zero_grad()
    if "other" in now:
        (second(x) - y).square().mean().backward()
        other.step()
    if "built" in now:
        torch.optim.SGD(second.parameters(), lr=0.1)
    if "eval" in now or "load" in now:
        model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(Data(), ROWS) if "load" in now else batches(2):
                print("mean", (x if "load" in now else model(x)).mean().item())
        model.train()
    if "graded" in now:
        model.eval()
        print("mean", sum(model(x).mean().item() for x, _ in batches(3)))
        model.train()
    if "part" in now:
        model.eval()
        with torch.no_grad():
            print("part", model[0](x).mean().item())
        model.train()
    if "infer" in now:
        with torch.no_grad():
            print("out", model(x).mean().item())
    if "copy" in now:
        copied = type(model).__new__(type(model))
        copied.__dict__ = model.__dict__.copy()
        copied._modules = second._modules
        print("copy", copied(x).mean().item(), second(x).mean().item())
    if "compile" in now:
        print("compiled", torch.compile(lambda x: x + 1, backend="eager")(x).mean().item())
    if "thread" in now:
        thread = threading.Thread(target=little)
        thread.start()
        thread.join()
    if "fork" in now:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            little()
            os._exit(0)
        os.waitpid(child, 0)
end(model, second)
