"""A loss in a function of the script's own, of many small operations."""

import copy
import pickle
import sys

import torch
from common import end, said
from torch import nn

HOW = sys.argv[1]
SEEN = []


def elbo(output, x, weight):
    rest = (output - x) ** 2
    spread = torch.log(rest.mean(0) + 1e-3)
    return rest.sum(1).mean() + weight * (0.5 * spread.exp() - spread).sum() + output.abs().mean()


def noisy(output, x, weight):
    return elbo(output + 0.1 * torch.randn_like(output), x, weight) * 1.0 + 0.0


def reading(output, x, weight):
    loss = elbo(output, x, weight) * 1.0 + 0.0
    SEEN.append(loss.item())
    return loss


def writing(output, x, weight):
    return elbo(output.mul_(0.5), x, weight) * 1.0 + 0.0


def collecting(output, x, weight, kept):
    kept.append(output.detach() + 0.0)
    return elbo(output, x, weight) * 1.0 + 0.0


def printing(output, x, weight):
    print("in the loss")
    return elbo(output, x, weight) * 1.0 + 0.0 * x.sum()


def with_rest(output, x, weight):
    rest = (output - x).square().mean().sqrt()
    return elbo(output, x, weight) * 1.0, rest + 0.0


def of_model(net, x, weight):
    output = net(x)
    return elbo(output, x, weight) * 1.0 + 0.0


class Elbo(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale
        self.register_buffer("one", torch.ones(()))

    def forward(self, output, x, weight):
        rest = (output - x) ** 2 * self.scale
        spread = torch.log(rest.mean(0) + 1e-3)
        return rest.sum(1).mean() * self.one + weight * (0.5 * spread.exp() - spread).sum()


class Noisy(Elbo):
    def forward(self, output, x, weight):
        noise = torch.randn_like(output)
        rest = (output + 0.1 * noise - x) ** 2
        return rest.sum(1).mean() + weight * rest.abs().sum() * self.one


def hooked(*_):
    print("hooked")


def failing(output, x, weight):
    if len(x) == 3:
        raise ValueError("three rows")
    return elbo(output, x, weight) * 1.0 + 0.0


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
criterion = {
    "draws": noisy, "reads": reading, "writes": writing, "collects": collecting, "prints": printing, "model": of_model,
    "fails": failing, "two results": with_rest, "inline": nn.MSELoss(), "module": Elbo(), "module draws": Noisy(), "module hooked": Elbo(),
    "module changes": Elbo(),
}.get(HOW, elbo)  # fmt: skip


def both(output, x):
    loss = elbo(output, x, 0.1) / 2
    loss = loss + noisy(output, x, 0.1)
    loss.backward()
    return loss


def step(at):
    x = torch.randn(4 + (at % 7 if HOW == "rows" else 0) - (HOW == "fails" and at == 9), 8)
    optimizer.zero_grad()
    output = model if HOW == "model" else model(x)
    if HOW == "module hooked" and at == 5:
        criterion.register_forward_hook(hooked)
    if HOW == "module changes":
        criterion.scale = 1.0 + 0.1 * (at // 5)
    rest = () if HOW == "inline" else (0.01 * at if HOW == "anneals" else 0.1,)
    if HOW == "two":
        loss = both(output, x)
    else:
        try:
            loss = criterion(output, x, *rest, **({"kept": SEEN} if HOW == "collects" else {}))
            loss = loss[0] if HOW == "two results" else loss
        except ValueError as error:
            print("caught", error)
            return
        loss.backward()
    said(loss)
    optimizer.step()
    with torch.no_grad():
        print("evaluated", f"{elbo(x, x * 2, 0.1).item():.4f}")


for at in range(14):
    step(at)
if HOW.startswith("module"):
    copied = copy.deepcopy(criterion)
    kept = pickle.loads(pickle.dumps(criterion))
    x = torch.ones(2, 8)
    print("copies", copied(x, 2 * x, 0.1).item(), kept(x, 2 * x, 0.1).item(), sorted(criterion.state_dict()))
print("seen", len(SEEN), elbo.__name__, elbo.__module__)
end(model)
