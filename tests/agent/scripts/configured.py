"""Overrides its globals with an exec'd file, as nanoGPT does."""

import sys
from pathlib import Path

import torch
from common import batches, end, net, said

steps = 12
exec(Path(sys.argv[1]).read_text())
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for x, y in batches(steps):
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(model)
