"""Loops whose updates are made by hand, without an optimizer: by_hand.py KIND STEPS [STEP:EVENT...]"""

import sys

import torch
from common import Data, batches, end, net, said
from torch.utils.data import DataLoader

kind, steps, *events = sys.argv[1:]
happens = dict(event.split(":") for event in events)
model, weight = net(), torch.full((4, 1), 0.5, requires_grad=True)
parameters = [*model.parameters(), weight]


def update():
    with torch.no_grad():
        for p in parameters:
            if p.grad is not None:
                p -= 0.01 * p.grad
                p.grad = None


def loss_of(x, y, step):
    if kind == "moves":
        x, y = x.to("cuda"), y.to("cuda")
    if kind in {"bare", "moves"}:
        return (x @ weight - y).square().mean()
    return (model(x) - y).square().mean()


def loaded():
    while True:
        yield from DataLoader(Data(), batch_size=6)


for step, (x, y) in zip(range(int(steps)), loaded() if kind == "loader" else batches(int(steps))):
    loss = said(loss_of(x, y, step))
    if kind == "jacobian":  # as many as there are rows, from one line
        for _ in range(30):
            torch.autograd.grad(loss, parameters[:2], retain_graph=True)
    loss.backward()
    happening = happens.get(str(step))
    if happening == "again":
        said(weight.square().sum()).backward()
    if happening == "error":
        raise ValueError("the user's own error")
    if happening == "break":
        break
    update()
    if happening == "eval":
        with torch.no_grad():
            model.eval()
            print(model(x).sum().item())
            model.train()
    if happening == "built":
        other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    if happening == "model":
        said((model(x) - y).square().mean()).backward()
        update()
    if happening == "raise":
        try:
            said(torch.ones(1).sum()).backward()
        except RuntimeError as error:
            print(type(error))
end(model)
print(weight.sum().item())
