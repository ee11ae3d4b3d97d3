"""A body that is frozen at first."""

from common import batches, end, said

import torch
from torch import nn

body, head = nn.Linear(4, 4), nn.Linear(4, 4)
model = nn.Sequential(body.requires_grad_(False), head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step, (x, _) in enumerate([*batches()] * 9):
    if step == 30:
        body.requires_grad_(True)
    optimizer.zero_grad()
    said(model(x).square().mean()).backward()
    optimizer.step()
end(model)
