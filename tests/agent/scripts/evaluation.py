"""Evaluates under no_grad: every fourth step (`between`), before the first (`before`), or on a loader of its own."""

import sys

import torch
from common import ROWS, Data, batches, end, net, said
from torch.utils.data import DataLoader

kind = sys.argv[1]
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def evaluate():
    model.eval()
    source = DataLoader(Data(), 2 * ROWS) if kind == "loader" else batches()
    print("mean", sum((model(x) - y).square().mean().item() for x, y in source))
    model.train()


if kind == "before":
    evaluate()
for step, (x, y) in enumerate(DataLoader(Data(), ROWS) if kind == "loader" else batches()):
    if kind != "before" and step and step % 4 == 0:
        evaluate()
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(model)
