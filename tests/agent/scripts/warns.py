"""Code that warns, each time at the same lines. An escape that Python warns of: '\d'."""

import warnings

import torch
from common import batches, end, net, said

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    warnings.warn("each once", stacklevel=1)
    loss = torch.nn.functional.mse_loss(model(x), y[:, 0])  # of another shape
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    said(loss)
end(model)
