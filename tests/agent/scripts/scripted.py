"""A model that trains is read by TorchScript, whole and as a part: first, in the midst of the loop and at its end."""

import sys

import torch
from common import STEPS, batches, end, net, said
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.blocks = net(), nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.net(x)

    @torch.jit.export
    def twice(self, x):
        return 2 * x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.layer(x)


@torch.no_grad()
def read(model):
    scripted = torch.jit.script(model)
    for made in (scripted, torch.jit.script(nn.Sequential(model)), torch.jit.trace(model, X)):
        print(made(X).sum().item(), made.code)
    print(scripted.twice(X).sum().item(), sorted(scripted.state_dict()))
    print(torch.jit.optimize_for_inference(torch.jit.script(model.eval()))(X).sum().item())
    model.train()


X = next(batches())[0]
model = Model()
if "compiled" in sys.argv:
    model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(batches()):
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in {1, 9, STEPS - 1}:
        read(model)
end(model)
