"""Run as `python -m pkg`; imports relatively."""

import torch

from .data import X

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    loss = model(X).square().mean()
    print("loss", repr(loss.item()))
    loss.backward()
    optimizer.step()
