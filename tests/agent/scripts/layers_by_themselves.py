"""Layers that no module holds together: each is an outermost one."""

import torch
from common import said

torch.manual_seed(0)
layers = [torch.nn.Linear(width, width + 1) for width in range(4, 16)]
optimizer = torch.optim.SGD([weight for layer in layers for weight in layer.parameters()], lr=0.05)
x = torch.randn(8, 4)
for _ in range(12):
    out = x
    for layer in layers:
        out = layer(out).tanh()
    optimizer.zero_grad()
    said(loss := out.square().mean()).backward()
    optimizer.step()
