"""Looks torch up before it imports it, as transformers does."""

import importlib.util

for _ in range(2):
    print(importlib.util.find_spec("torch") is not None)

import torch  # noqa: E402
from common import batches, by_hand, end, net, said  # noqa: E402

model = net()
for x, y in batches():
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    by_hand(model)
print(importlib.util.find_spec("torch") is not None)
end(model)
