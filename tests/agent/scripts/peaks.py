"""A loop in which an evaluation, or a checkpoint, takes 256 MiB more than a step does."""

import io
import sys

import torch
from common import end, said
from torch import nn

SIZE = 2**25
"""Numbers, of four bytes."""


def evaluate(model):
    model.eval()
    with torch.no_grad():
        kept = [model(torch.ones(SIZE, 1)), torch.ones(SIZE)]  # evaluates
    model.train()
    return len(kept)


def save(model):
    torch.save([*model.state_dict().values(), torch.ones(1).expand(SIZE * 2).clone()], io.BytesIO())  # saves


def main(kind, times):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for at in range(times):
        loss = model(torch.ones(8, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said(loss)
        if at == times - 5 and kind != "plain":
            evaluate(model) if kind == "evaluates" else save(model)
    end()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
