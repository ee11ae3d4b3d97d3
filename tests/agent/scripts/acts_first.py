"""A policy acts before anything is trained; then a value network is fitted by hand, then the policy: no optimizer."""

import torch
from common import X, Y, end, net, said


class Value(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.outer(self.inner(x).tanh())


def fit(model):
    said(loss := (model(X) - Y).square().mean()).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
            weight.grad = None


policy, value = net(), Value()
for _ in range(6):
    with torch.no_grad():
        for row in X[:40]:
            policy(row[None])
    for _ in range(4):
        fit(value)
    fit(policy)
end(policy)
