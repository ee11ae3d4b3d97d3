"""A DataLoader in one of its many shapes. argparse at import, work under `if __name__`."""

import argparse

import torch
from common import ROWS, STEPS, Data, X, Y, end, net, said
from torch.utils.data import DataLoader, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("shape", choices=["map", "iterable", "subclass", "len", "generator", "model"])
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--context", default=None)
args = parser.parse_args()


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, of = (info.id, info.num_workers) if info else (0, 1)
        yield from zip(X[first::of], Y[first::of], strict=True)


class Own(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield x * 2, y


class Modelled(Data):
    """Runs a model on each row: a forward that is none of the loop's."""

    def __init__(self):
        self.model = torch.nn.Linear(4, 4)

    def __getitem__(self, index):
        with torch.no_grad():
            return self.model(X[index]), Y[index]


def plain():
    for at in range(0, STEPS * ROWS, ROWS):
        yield X[at : at + ROWS], Y[at : at + ROWS]


def loader():
    if args.shape == "generator":
        return plain()
    kind = Own if args.shape == "subclass" else DataLoader
    data = {"iterable": Stream, "model": Modelled}.get(args.shape, Data)()
    return kind(data, ROWS, num_workers=args.workers, multiprocessing_context=args.context)


def main():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    source = loader()
    if args.shape == "len":
        print(len(iter(source)))
    for x, y in source:
        optimizer.zero_grad()
        loss = said(torch.nn.functional.mse_loss(model(x), y))
        loss.backward()
        optimizer.step()
    end(model)


if __name__ == "__main__":
    main()
