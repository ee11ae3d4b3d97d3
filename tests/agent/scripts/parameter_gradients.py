"""Gradients of parameters that are differentiated again, in every fourth step, by products with the Hessian as TRPO
makes them. With `blocks` the model is of blocks that are repeated."""

import sys

import torch
from common import batches, end, net, said, stack

model = stack() if "blocks" in sys.argv else net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def flat(of, again):
    found = torch.autograd.grad(of, list(model.parameters()), create_graph=again)
    return torch.cat([one.reshape(-1) for one in found])


for step, (x, y) in enumerate(batches()):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    if step % 4 == 3:
        slope = flat(loss, True)
        for _ in range(3):
            product = torch.autograd.grad(slope @ slope.detach(), list(model.parameters()), retain_graph=True)
        print("product", sum(one.double().abs().sum() for one in product).item())
    said(loss).backward()
    optimizer.step()
end(model)
