"""Each forward is of an input whose gradient is differentiated again, as of Hamiltonian networks."""

import torch
from common import batches, end, net, said

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in batches():
    optimizer.zero_grad()
    x = x.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    said((slope.sum(1, keepdim=True) - y).square().mean()).backward()
    optimizer.step()
end(model)
