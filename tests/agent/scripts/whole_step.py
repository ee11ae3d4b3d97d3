"""All of a step is compiled, and breaks at the backward: what follows runs where torch.compile looks at it."""

import torch
from common import batches, end, net
from torch._dynamo.utils import counters

model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


@torch.compile(backend="aot_eager")
def step(x, y):
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for x, y in batches(90):
    print("loss", repr(step(x, y).item()))
end(model)
print("frames", counters["frames"]["total"])
