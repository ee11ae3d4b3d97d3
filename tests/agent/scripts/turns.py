"""Loops in which more than one update, or more than an update, makes a step, and what may turn up in the midst of one:
`KIND STEPS at:what ...`.

gan: one optimizer steps twice, then another once. lbfgs: a closure. wrapped: an optimizer whose step calls another's.
scaled: two optimizers, by a GradScaler.

built: an optimizer is made; other: one that was made at the start steps; again: the first one steps once more; raise:
it fails, and the script goes on; eval: an evaluation of the model; interrupt: Ctrl-C, and the rest of the turn is left
out; many: very many backwards before an update; skip: the scaler leaves one out; silent: no optimizer steps any more.
"""

import sys

import torch
from common import batches, end, net, said

kind, steps, *events = sys.argv[1:]
model, second, third = net(), torch.nn.Linear(4, 4), net()
spare = torch.optim.SGD(third.parameters(), lr=0.1)


class Wrapped(torch.optim.Optimizer):
    """Holds another, as Lookahead and SAM do."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


class Failing(torch.optim.SGD):
    fails = False

    def step(self, closure=None):
        if self.fails:
            raise RuntimeError("no step today")
        return super().step(closure)


def sgd(of):
    return torch.optim.SGD(of.parameters(), lr=0.01)


def loss(x, y):
    said(found := (model(second(x)) - y).square().mean())
    found.backward()
    return found


def happen(now, x, y, first):
    if "built" in now:
        sgd(third)
    if "other" in now:
        third(x).mean().backward()
        spare.step()
    if "again" in now:
        first.step()
    if "eval" in now:
        model.eval()
        with torch.no_grad():
            print("mean", model(x).mean().item())
        model.train()
    for _ in range(80 if "many" in now else 0):
        loss(x, y)
    if "interrupt" in now:
        raise KeyboardInterrupt


def step(optimizer, now=()):
    optimizer.fails = "raise" in now
    try:
        if "silent" not in now:
            optimizer.step()
    except RuntimeError as error:
        print("caught", error)
    optimizer.zero_grad()


def gan(x, y, now, one, two):
    loss(x, y)
    step(one, now)
    happen(now, x, y, one)
    for optimizer in (one, two):
        loss(x, y)
        step(optimizer, now if "silent" in now else ())


def lbfgs(x, y, now, optimizer):
    def closure():
        optimizer.zero_grad()
        found = loss(x, y)
        happen(now, x, y, spare)
        now.clear()
        return found

    optimizer.step(closure)


def wrapped(x, y, now, optimizer):
    loss(x, y)
    happen(now, x, y, optimizer)
    optimizer.step()
    optimizer.zero_grad()


def scaled(x, y, now, one, two):
    for at, optimizer in enumerate((one, two)):
        out = (model(second(x)) - y).square().mean()
        scaler.scale(said(out)).backward()
        if "skip" in now and not at:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        optimizer.zero_grad()
        happen(now if at else [], x, y, one)
    scaler.update()


scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
make = {
    "gan": lambda: (Failing(model.parameters(), lr=0.01), sgd(second)),
    "lbfgs": lambda: (torch.optim.LBFGS(model.parameters(), max_iter=3),),
    "wrapped": lambda: (Wrapped(sgd(model)),),
    "scaled": lambda: (sgd(model), sgd(second)),
}
optimizers = make[kind]()
silent = False
for at, (x, y) in enumerate(batches(int(steps))):
    now = [event.partition(":")[2] for event in events if int(event.partition(":")[0]) == at]
    silent = silent or "silent" in now
    try:
        globals()[kind](x, y, ["silent"] if silent else now, *optimizers)
    except KeyboardInterrupt:
        print("interrupted")
end(model, second, third)
