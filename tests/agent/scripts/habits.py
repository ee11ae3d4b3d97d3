"""What people leave in their loops: habits.py WHAT."""

import os
import sys

os.environ.update(KINETO_LOG_LEVEL="99", CUDA_LAUNCH_BLOCKING="1")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

what = sys.argv[1]
torch.manual_seed(0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20_000, 4, sparse=what == "sparse")
        if what == "table":
            self.table = nn.Parameter(torch.randn(20_000, 4))
        self.block = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, ids):
        x = self.table[ids] if what == "table" else self.table(ids)
        x = checkpoint(self.block, x, use_reentrant=False) if what == "checkpoint" else self.block(x)
        return x.squeeze(-1)


if what in {"anomaly", "first"}:
    torch.autograd.set_detect_anomaly(True)
ids = torch.arange(20_000) if what == "all-rows" else torch.randint(20_000, (640,))
loader = DataLoader(TensorDataset(ids, torch.randn(len(ids))), batch_size=20_000 if what == "all-rows" else 16)
model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(loader)
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
if what == "profiler":
    profiler.start()
for step in range(60 if what == "profiler" else 20):
    if what == "hooks":
        model.block.register_forward_hook(lambda *_: None)
    if what == "iterators":
        x, y = next(iter(loader))
    else:
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    with torch.autograd.set_detect_anomaly(what == "anomaly" or (what == "first" and step < 3) or what == "around"):
        loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
