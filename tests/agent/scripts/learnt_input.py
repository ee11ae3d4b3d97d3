"""An input is optimised in the place of the model, and nothing is differentiated again."""

import torch
from common import end, net, said

model = net()
x = torch.ones(6, 4, requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.05)
for _ in range(12):
    optimizer.zero_grad()
    said(loss := model(x).square().mean()).backward()
    optimizer.step()
end(model)
