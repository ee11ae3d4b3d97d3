"""A critic whose gradient by its inputs is penalised, as in WGAN-GP: penalty.py KIND

inside: in a function of its own; inline: in the loop; late: in a helper that gets what the forward returned, once;
hidden: of features that another model makes. With `blocks` the critic is of blocks that are repeated.
"""

import sys

import torch
from common import batches, end, net, said, stack

kind = sys.argv[1]
model = stack() if "blocks" in sys.argv else net()
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


def slope(out, x):
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return gradient.square().sum(1).mean()


def late():
    for number, (x, _) in enumerate(batches()):
        step(model(x).square().mean())
        if number == 10:
            x.requires_grad_(True)
            step(slope(model(x), x))


def hidden():
    features = torch.nn.Linear(4, 4)
    for x, _ in batches():
        style = features(x)
        step(slope(model(style), style) + model(x).mean())


def step(loss):
    optimizer.zero_grad()
    said(loss).backward()
    optimizer.step()


if kind == "inside":
    for x, _ in batches():
        step(critic(x))
else:
    {"inline": inline, "late": late, "hidden": hidden}[kind]()
end(model)
