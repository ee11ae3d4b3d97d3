"""A model that was run is copied, pickled, saved, traced and moved about; copies use their own weights."""

import copy
import io
import pickle

import torch
from common import batches, end, net, said
from torch import nn


class Held(nn.Module):
    """Pickles its whole state, as scripts do that know nothing of what torch leaves out."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x)

    def __getstate__(self):
        return self.__dict__.copy()


def halved(clone):
    with torch.no_grad():
        for p in clone.parameters():
            p.mul_(0.5)
        print(clone(X).sum().item())


X = next(batches())[0]
model = Held()
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(batches()):
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mine, its in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(its, 0.1)
        print("average", average(x).sum().item())
    if step in {1, 9}:
        average = copy.deepcopy(average)
file = io.BytesIO()
torch.save(model, file)
file.seek(0)
clones = copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)
replica = model._replicate_for_data_parallel()
replica.inner = copy.deepcopy(model.inner)
for clone in (*clones, replica):
    halved(clone)
print(torch.jit.trace(model, X)(X).sum().item(), torch.jit.script(model.inner)(X).sum().item())
print(torch.fx.symbolic_trace(model)(X).sum().item())
end(model, average)
