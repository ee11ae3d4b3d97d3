"""A loop that names the device of all that it makes, beside another default device and dtype: default_device.py [block]"""

import contextlib
import sys

import torch
from common import end, net, said
from torch import nn

on = {"device": "cpu", "dtype": torch.float32}
model = nn.Sequential(net(), nn.Linear(1, 1))
xs = torch.randn(12, 6, 4, **on)
with torch.device("meta") if "block" in sys.argv else contextlib.nullcontext():
    if "block" not in sys.argv:
        torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for x in xs:
        noisy = x + 0.1 * torch.randn(x.shape, **on)
        loss = said((model(noisy) - x.sum(1, keepdim=True)).square().mean())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert torch.empty(1).is_meta
torch.set_default_device("cpu")
end(model)
