"""A critic whose gradient by its inputs is penalised, as in WGAN-GP: penalty.py KIND

inside: in a function of its own; inline: in the loop; image: an input is optimised, and nothing differentiated again.
"""

import sys

import torch
from common import batches, end, net, said

kind = sys.argv[1]
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def penalty(real, fake):
    between = (0.5 * real + 0.5 * fake).detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


def critic(x):
    fake = x.flip(0)
    return model(fake).mean() - model(x).mean() + penalty(x, fake)


def inline():
    for x, _ in batches():
        inner = x.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(model(inner).sum(), inner, create_graph=True)
        step(model(x).square().mean() + gradient.square().mean())


def image():
    x = torch.ones(6, 4, requires_grad=True)
    by = torch.optim.SGD([x], lr=0.05)
    for _ in range(12):
        by.zero_grad()
        said(loss := model(x).square().mean()).backward()
        by.step()


def step(loss):
    optimizer.zero_grad()
    said(loss).backward()
    optimizer.step()


if kind == "inside":
    for x, _ in batches():
        step(critic(x))
elif kind == "inline":
    inline()
else:
    image()
end(model)
