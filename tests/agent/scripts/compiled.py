"""Compiled by the user: the module from outside or in place, a function around it, or the optimizer's step."""

import sys

import torch
from common import batches, end, net, said
from torch._dynamo.utils import counters

kind, backend = sys.argv[1:3]
steps = 70 if kind == "step" else 12


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run, step = model, optimizer.step
if kind == "module":
    run = torch.compile(model, backend=backend)
elif kind == "method":
    model.compile(backend=backend)
elif kind in {"function", "warm"}:
    if kind == "warm":
        print(model(next(batches())[0]).sum().item())
    run = torch.compile(lambda x: model(x) * 1.0, backend=backend)
elif kind == "step":
    step = torch.compile(optimizer.step, backend=backend)
elif kind == "grad":

    @torch.compile(backend=backend)
    def run(x):
        inner = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad((inner**2).sum(), inner)
        return model(x + slope.to(torch.float32))


for x, y in batches(steps):
    said(loss := (run(x) - y).square().mean())
    loss.backward()
    step()
    optimizer.zero_grad()
for name in sorted(counters):  # a compiled `Optimizer.step` is cut elsewhere where it has hooks, as often
    print(name, {} if name == "frames" and kind == "step" else dict(counters[name]))
end(model)
