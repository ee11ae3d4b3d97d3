"""GradScaler on the CPU; gradients of step 5 are infinite, so that its update is skipped."""

import torch
from common import batches, end, net, said

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step, (x, y) in enumerate(batches()):
    optimizer.zero_grad()
    said(loss := (model(x) - y).square().mean())
    scaler.scale(loss).backward()
    if step == 5:
        model[0].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
print(scaler.get_scale())
end(model)
