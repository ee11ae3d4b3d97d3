"""Gradients of parameters that are differentiated again, in every fourth step. Arguments: how; `blocks`."""

import sys

import torch
from common import X, Y, batches, net, said, stack
from torch import nn
from torch.func import functional_call

HOW = sys.argv[1]


class Several(nn.Module):
    """Returns more than one tensor, of which some have no gradient."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = stack() if "blocks" in sys.argv else net(), nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5 if HOW == "draws" else 0.0)

    def forward(self, x, more=None):
        if HOW == "before":
            x = x * self.scale
        x = x * more["scale"] if more else x
        made = self.inner(self.drop(self.norm(x)))
        return {"made": made, "sure": made > 0, "again": [made * 2]}


def norm(of, parameters):
    found = torch.autograd.grad(of, parameters, create_graph=True)
    return torch.cat([one.reshape(-1) for one in found])


model = Several()
if HOW == "hooks":
    next(model.parameters()).register_hook(lambda gradient: gradient * 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step, (x, y) in enumerate(batches()):
    optimizer.zero_grad()
    if HOW == "before":  # made once, and used by two forwards
        model.scale = next(model.parameters()).square().mean().add(1).sqrt()
        first = model(x.flip(1))["made"].square().mean()
    if HOW == "nested":  # in a dict, as MAML++ hands weights over
        scale = next(model.parameters()).square().mean().add(1).sqrt()
        of = model(x, {"scale": scale})["made"].square().mean()
        (slope,) = torch.autograd.grad(of, scale, create_graph=True)
        said(slope.square()).backward()
    made = model(x)
    loss = (made["made"] - y).square().mean() + 0.1 * made["again"][0].square().mean()
    if HOW == "before":
        loss = loss + first
    if step % 4 == 3 and HOW == "penalty":
        loss = loss + 0.01 * norm(loss, list(model.parameters())).square().sum()
    elif step % 4 == 3 and HOW == "products":  # with the Hessian, as TRPO's conjugate gradients
        flat = norm(loss, list(model.parameters()))
        for _ in range(3):
            product = torch.autograd.grad(flat @ flat.detach(), list(model.parameters()), retain_graph=True)
        print("product", sum(one.double().abs().sum() for one in product).item())
    elif step % 4 == 3 and HOW == "maml":
        names, found = zip(*model.named_parameters())
        steps = torch.autograd.grad(loss, found, create_graph=True)
        fast = {name: p - 0.1 * g for name, p, g in zip(names, found, steps)}
        loss = (functional_call(model, fast, (X[:6],))["made"] - Y[:6]).square().mean()
    elif step % 4 == 3 and HOW == "kept":
        loss.backward(retain_graph=True)
    said(loss).backward()
    optimizer.step()
if HOW == "freed":
    try:
        loss.backward()
    except RuntimeError as error:
        print("raised", "second time" in str(error))
print("norm", model.norm.num_batches_tracked.item(), [round(v, 4) for v in model.norm.running_mean.tolist()])
if HOW != "draws":
    print(torch.rand(1).item())
