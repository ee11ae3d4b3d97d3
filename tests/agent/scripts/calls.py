"""A loop over a loader, simple, of two optimizers (`gan`), with a closure or with updates by hand (`hand`), which prints the
functions of hotlap's that its last steps call, by the shortest list."""

import sys

import torch
from common import ROWS, Data, net
from torch.utils.data import DataLoader

steps, kind = int(sys.argv[1]), sys.argv[2]
model = net()
optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range({"gan": 2, "hand": 0}.get(kind, 1))]
found, calls = [], []


def profile(frame, event, _):
    if event == "call" and "hotlap" in frame.f_code.co_filename and "tests" not in frame.f_code.co_filename:
        calls.append(frame.f_code.co_name)


at = 0
while at < steps:
    for x, y in DataLoader(Data(), ROWS):

        def backward(x=x, y=y):
            (model(x) - y).square().mean().backward()

        for optimizer in optimizers:
            if kind == "closure":
                optimizer.step(backward)
            else:
                backward()
                optimizer.step()
            optimizer.zero_grad()
        if kind == "hand":
            backward()
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.01)
                parameter.grad = None
        sys.setprofile(None)
        found.append(list(calls))
        calls.clear()
        at += 1
        sys.setprofile(profile)
sys.setprofile(None)
print("calls", *min(found[20:], key=len))
