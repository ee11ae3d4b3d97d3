"""Two epochs over a loader with a worker, and passes over another like it that nothing is learned from, with gradients:
to look at the data (`before`), to test the model after each epoch (`between`), or at the end (`after`). `infer` only
infers. `ahead` asks for a batch before the one at hand is learned from."""

import sys

import torch
from common import ROWS, Data, end, net, said
from torch.utils.data import DataLoader


def loader():
    return DataLoader(Data(), ROWS, num_workers=1)


def ahead(batches):
    batches = iter(batches)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch


def test():
    model.eval()
    print("mean", sum((model(x) - y).square().mean().item() for x, y in loader()))
    model.train()


kind = sys.argv[1]
model = net()
if kind == "before":
    print("mean", sum(x.mean().item() for x, _ in loader()))
if kind == "infer":
    with torch.no_grad():
        for x, _ in loader():
            print(model(x).sum().item())
    sys.exit()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for x, y in ahead(loader()) if kind == "ahead" else loader():
        said(loss := (model(x) - y).square().mean())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if kind == "between":
        test()
if kind == "after":
    test()
end(model)
