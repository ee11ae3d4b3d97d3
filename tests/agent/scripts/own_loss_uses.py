"""What scripts do with a loss of their own beside its backward."""

import math
import pickle
import sys
import weakref

import torch
from common import end, said
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

HOW = sys.argv[1]
AT = 0
SCALE = nn.Parameter(torch.ones(()))


def loss_of(output, x, parts=(), noisy=False):
    rest = (output - x) ** 2
    if noisy:
        rest = rest + 0.1 * torch.rand_like(rest)
    if HOW == "counts":
        rest = rest * math.exp(-0.01 * AT)
    if HOW == "reads a parameter":
        rest = rest * SCALE
    loss = rest.sum(1).mean() + 0.1 * torch.log1p(output.exp()).mean()
    for part in parts:
        loss = loss + 0.01 * part.square().mean()
    return loss


ALIAS = loss_of
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
optimizer = torch.optim.AdamW([*model.parameters(), SCALE], lr=0.01)
refs = []


weights = list(model.parameters())

for step in range(14):
    AT = step
    x = torch.randn(4, 8)
    output = model(x)
    optimizer.zero_grad()
    if HOW == "under a mode":
        with FlopCounterMode(display=False):
            loss = loss_of(output, x)
    elif HOW == "many lengths":
        loss = loss_of(output, x, [output * k for k in range(step)])
    elif HOW == "draws later":
        loss = loss_of(output, x, noisy=step > 5)
    else:
        loss = loss_of(output, x, parts=(output,))
    if HOW == "keeps the graph":
        first = torch.autograd.grad(loss, weights[0], retain_graph=True)[0]
        (loss * (1 + 0 * first.norm().item())).backward()
    elif HOW == "penalty":
        found = torch.autograd.grad(loss, weights, create_graph=True)
        (loss + 0.1 * sum(g.square().sum() for g in found)).backward()
        del found
    else:
        loss.backward()
    if HOW == "twice":
        try:
            loss.backward()
        except RuntimeError as error:
            print("caught", str(error)[:40])
    if HOW == "writes into it":
        loss /= 2
    said(loss.detach())
    optimizer.step()
    refs += [weakref.ref(x), weakref.ref(output)]
del x, output, loss
print(
    "alive",
    sum(ref() is not None for ref in refs),
    "same",
    ALIAS is loss_of,
    pickle.loads(pickle.dumps(ALIAS)) is loss_of,
)
print("defaults", loss_of.__defaults__, loss_of.__name__, f"{float(SCALE):.6f}")
end(model)
