"""A model that is a module of TorchScript."""

import torch
from common import batches, end, net, said

model = torch.jit.script(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, _ in batches():
    optimizer.zero_grad()
    said(loss := model(x).square().mean()).backward()
    optimizer.step()
end(model)
