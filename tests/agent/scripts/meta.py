"""A model whose FLOPs are counted on meta, where nothing is computed, before one trains."""

import torch
from common import batches, end, net, said
from torch.utils.flop_counter import FlopCounterMode

with torch.device("meta"), FlopCounterMode(display=False) as counter:
    counted = net()
    print(counted(torch.empty(6, 4)).shape)
print("flops", counter.get_total_flops())
model = net()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for x, y in batches():
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(model)
