"""Trains in a thread (`train`), or reads the loader in one, as prefetchers do (`read`)."""

import queue
import sys
import threading

import torch
from common import ROWS, Data, batches, end, net, said
from torch.utils.data import DataLoader


def train(source, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in source:
        said(loss := (model(x) - y).square().mean())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def read(into):
    for batch in DataLoader(Data(), ROWS):
        into.put(batch)
    into.put(None)


model = net()
if sys.argv[1] == "train":
    thread = threading.Thread(target=train, args=(batches(), model))
    thread.start()
else:
    ready = queue.Queue(1)
    thread = threading.Thread(target=read, args=(ready,))
    thread.start()
    train(iter(ready.get, None), model)
thread.join()
end(model)
