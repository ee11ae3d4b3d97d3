"""A loader whose workers outlive its epochs, and who is alive at exit, asked where torch registers what waits for them."""

import atexit
import sys

import torch
from common import by_hand, net

keeps = "not" not in sys.argv
model = net()
width = next(model.parameters()).shape[1]
rows = torch.utils.data.TensorDataset(torch.randn(80, width))
loader = torch.utils.data.DataLoader(rows, batch_size=2, num_workers=2 if keeps else 0, persistent_workers=keeps)
iterators, workers = torch.utils.data.dataloader._MultiProcessingDataLoaderIter, []
start = iterators.__init__


def begin(self, loader):
    start(self, loader)
    workers.extend(self._workers)
    atexit.register(lambda: print("alive at exit", [worker.is_alive() for worker in workers], flush=True))


iterators.__init__ = begin
for _ in range(2):
    for (x,) in loader:
        model(x).square().mean().backward()
        by_hand(model)
