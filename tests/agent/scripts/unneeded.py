"""A model that computes each row several times, in half precision, and goes over a sequence again for each new step; a
term of its loss has weight zero, and four small models are run one by one, and weights are
cast in each call."""

import torch
from common import end, said
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 4)
        self.memory = nn.GRU(4, 4, batch_first=True)

    def forward(self, x, state=None):
        x = x.repeat(3, 1)  # line: repeat
        x = self.head(self.drop(self.encoder(x)))[:, None]
        for _ in range(4):
            out, _ = self.memory(input=x, hx=state)  # line: again
            x = torch.cat([x, out[:, -1:]], 1)
        carried, state = self.memory(x[:, :1])
        for _ in range(4):
            carried, state = self.memory(carried, hx=state)
        return carried


model = Net()
members = nn.ModuleList(nn.Linear(4, 8) for _ in range(4))
optimizer = torch.optim.SGD([*model.parameters(), *members.parameters()], 0.01)
for _ in range(90):
    with torch.autocast("cpu", torch.bfloat16):  # line: autocast
        loss = model(torch.randn(8, 4)).float().square().mean()
    given = torch.randn(2, 4)
    for one in members:
        loss = loss + one(given).mean()  # line: one by one
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):  # line: autocast
            given = model.head(model.encoder(given)).float()
    loss = loss + given.mean() + 0.0 * model.head.weight.square().sum()  # line: zero
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    said(loss)
end(model)
