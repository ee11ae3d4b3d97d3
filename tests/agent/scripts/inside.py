"""Optimizers that step inside the backward, one for each parameter, so that gradients need no memory."""

import sys

import torch
from common import STEPS, batches, end, said
from torch import nn

kind, *steps = sys.argv[1:]
other = []


class Some(nn.Sequential):
    """Of its parts some are called, others each time."""

    step = 0

    def forward(self, x):
        self.step += kind == "some"
        for at, part in enumerate(self):
            x = part(x) if at == 36 or (at + self.step) % 3 or kind != "some" else x
        return x


def made():
    model = Some(*[nn.Linear(4, 4) for _ in range(36)], nn.Linear(4, 1))  # more than 64 parameters
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def update(p):
        if kind == "built" and done == 21 and not other:
            other.append(torch.optim.SGD([torch.zeros(1)], lr=0.1))
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    return model


first, second = made(), made()
for done, (x, y) in enumerate(batches(int(steps[0]) if steps else STEPS)):
    said((first(x) - y).square().mean()).backward()
    if kind == "outside" and done == 21:
        torch.optim.SGD(first.parameters(), lr=0.1).step()
    if kind == "two":
        said((second(x) - y).square().mean()).backward()
end(first, second)
