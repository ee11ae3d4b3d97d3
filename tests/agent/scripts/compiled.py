"""Compiled by the user: the module from outside or in place, a function around it, or the optimizer's step."""

import sys

import torch
from common import batches, end, net, said
from torch._dynamo.utils import counters

kind, backend = sys.argv[1:3]
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run, step = model, optimizer.step
if kind == "module":
    run = torch.compile(model, backend=backend)
elif kind == "method":
    model.compile(backend=backend)
elif kind == "function":
    run = torch.compile(lambda x: model(x) * 1.0, backend=backend)
elif kind == "step":
    step = torch.compile(optimizer.step, backend=backend)
elif kind == "grad":

    @torch.compile(backend=backend)
    def run(x):
        inner = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad((inner**2).sum(), inner)
        return model(x + slope.to(torch.float32))


for x, y in batches():
    said(loss := (run(x) - y).square().mean())
    loss.backward()
    step()
    optimizer.zero_grad()
print({name: dict(found) for name, found in counters.items() if name in {"graph_break", "frames", "recompiles"}})
print(sum(counters["recompile_limit"].values()), counters["stats"]["unique_graphs"])
end(model)
