"""A policy that acts row by row before each update, with gradients that nobody uses, or in another way."""

import sys

import torch
from common import batches, end, net, said
from torch import nn
from torch.utils.checkpoint import checkpoint

KIND = sys.argv[1]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.noted = net(), []

    def forward(self, x):
        if KIND == "checkpointed":
            return checkpoint(self.net, x, use_reentrant=False)
        hidden = self.net[:2](x)
        self.noted.append(hidden)
        return {"value": self.net[2](hidden), "hidden": hidden}["hidden" if KIND in {"hidden", "kept"} else "value"]


policy = Policy()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
kept = []
for x, y in [*batches()] * 4:
    policy.noted.clear()
    outputs = []
    for row in x:
        with torch.set_grad_enabled(KIND != "without"):
            outputs.append(policy(row[None]))  # acts
    loss = (policy(x) - (0.0 if KIND in {"hidden", "kept"} else y)).square().mean()
    if KIND == "accumulated":
        torch.stack(outputs).square().mean().backward()
    elif KIND == "noted":
        loss = loss + sum(hidden.square().mean() for hidden in policy.noted[:-1])
    elif KIND == "kept":
        kept.append(outputs)
        if len(kept) == 3:
            loss = loss + sum(torch.stack(one).square().mean() for one in kept)
            kept = []
    elif KIND == "retained":
        (torch.stack(outputs).square().mean() + loss).backward(retain_graph=True)
    del outputs
    said(loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(policy)
