"""Loops whose rows are sequences of tokens, or look as if they were: `python tokens.py KIND`."""

import sys

import torch
from torch import nn

STEPS, BATCH, LENGTH, WORDS = 12, 3, 5, 11


class Model(nn.Module):
    """`text` returns (batch, length, words), `flat` the same as rows, `ids` one number for a row of ids, `classes` some
    for a text, `loss` nothing but the loss, `pairs` takes a source and a target of other lengths."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, WORDS)

    def forward(self, ids: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        out = self.head(self.embed(ids))
        if self.kind == "flat":
            return out.flatten(0, 1)
        if self.kind == "ids":
            return out.mean((1, 2))
        if self.kind == "classes":
            return out.mean(1)
        return out.square().mean() if self.kind == "loss" else out


def main(kind: str) -> None:
    torch.manual_seed(0)
    model = Model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        for _ in range(2):
            length = LENGTH + step % 2
            ids = torch.randint(WORDS, (BATCH, length))
            more = (torch.randint(WORDS, (BATCH, 4)),) if kind == "pairs" else ()
            model(ids, *more).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main(sys.argv[1])
