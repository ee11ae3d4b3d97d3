"""A loop whose batches are drawn by a search through lists, which are items of an attribute."""

from collections import defaultdict

import torch
from common import end, said
from torch import nn


class Positives:
    def __init__(self):
        self.of = defaultdict(list, {user: list(range(50_000)) for user in range(3)})

    def batch(self):
        drawn = []
        for at in range(40):
            if at + 49_990 in self.of[at % 3]:  # search
                continue
            drawn.append(float(at % 7))
        return torch.tensor(drawn)[:, None]


def main():
    torch.manual_seed(0)
    model, positives = nn.Linear(1, 1), Positives()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(60):
        loss = model(positives.batch()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said(loss)
    print(len(positives.of))
    end()


if __name__ == "__main__":
    main()
