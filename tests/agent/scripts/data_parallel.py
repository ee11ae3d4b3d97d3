"""A model in DataParallel, which on a CPU calls it as it is."""

import torch
from common import batches, end, said


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.outer(self.inner(x).tanh())


model = torch.nn.DataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, _ in batches():
    optimizer.zero_grad()
    said(loss := model(x).square().mean()).backward()
    optimizer.step()
end(model)
