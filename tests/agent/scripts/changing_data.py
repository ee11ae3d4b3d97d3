"""A dataset that the process which trains changes before each epoch, as one is whose negatives are drawn anew; argument:
what changes. It prints which epoch's samples a loop was given, and what is drawn next of the global generator; the
file of the second argument gets the workers of each epoch."""

import sys

import torch
from common import by_hand, net
from torch.utils.data import DataLoader, Dataset, Subset

WHAT = sys.argv[1]
model = net()
width = next(model.parameters()).shape[1]


def print_nothing(_):
    pass


class Drawn(Dataset):
    def __init__(self):
        self.epoch, self.rows, self.table = 0, [[0] for _ in range(8)], torch.zeros(8)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        drawn = {"attribute": self.epoch, "inside": self.rows[index][0], "tensor": int(self.table[index])}
        return torch.full((width,), 1.0), drawn.get(WHAT, 0)


data = Drawn()
begins = {"worker_init_fn": print_nothing} if WHAT == "start" else {}
loader = DataLoader(Subset(data, range(8)), batch_size=4, shuffle=True, **begins)
for epoch in range(4):
    if WHAT != "nothing":
        data.epoch = epoch
        data.rows[-1][0] = epoch
        data.table += 1 if epoch else 0
    seen = []
    for x, drawn in loader:
        model(x).square().mean().backward()
        by_hand(model)
        seen += drawn.tolist()
    print(epoch, "given", max(seen), "next", torch.rand(1).item(), flush=True)
    with open(sys.argv[2], "a") as file:
        print(*(worker.pid for worker in getattr(loader._iterator, "_workers", [])), file=file)
if WHAT == "within":  # an epoch, of which another one is begun
    rows = 0
    for at, (x, _) in enumerate(loader):
        rows += len(x)
        if at == 0:
            data.epoch += 1
            print("a sample", len(next(iter(loader))[0]))
    print("rows", rows, "in pairs", sum(len(one[0]) for one, _ in zip(loader, loader)))
