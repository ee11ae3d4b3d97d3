"""Evaluates under no_grad: every fourth step (`between`), before the first (`before`), or on a loader of its own; or once,
late: a part of the model that trains (`part`), or the whole of which a part trains (`whole`). `graded`: after each step,
with gradients. `frozen`: never, but a module that is not trained is put in eval mode in each step. `often`, `always`: in
every second step, or each, of so many that a run can be ended in them."""

import sys
import time

import torch
from common import ROWS, STEPS, Data, X, Y, batches, end, net, said
from torch.utils.data import DataLoader


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = net()

    def forward(self, x):
        return self.part(x)


kind = sys.argv[1]
model, frozen = Whole(), net()
trained = model.part if kind == "whole" else model
evaluated = model.part if kind == "part" else model
at = {"before": (), "frozen": (), "graded": (), "part": (8,), "whole": (8,)}.get(kind, (4, 8))
every = {"often": 2, "always": 1}.get(kind, 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def evaluate():
    model.eval()
    source = DataLoader(Data(), 2 * ROWS) if kind == "loader" else batches()
    print("mean", sum((evaluated(x) - y).square().mean().item() for x, y in source))
    model.train()


if kind == "before":
    evaluate()
for step, (x, y) in enumerate(DataLoader(Data(), ROWS) if kind == "loader" else batches(200 if every else STEPS)):
    if every:
        time.sleep(0.01)  # beside which an evaluation is short: else such steps come to rest late
    if step in at or (every and step % every == 0):
        evaluate()
    if kind == "frozen":
        frozen.eval()
    said(loss := (trained(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if kind == "graded":
        model.eval()
        print("mean", (model(X) - Y).square().mean().item())
        model.train()
end(model)
