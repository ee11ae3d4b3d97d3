"""Sizes and options that are numpy's numbers, as code of reinforcement learning has them."""

import sys

import numpy as np
import torch
from common import ROWS, Data, end, said
from torch import nn
from torch.utils.data import DataLoader

sys.argv.append(np.int64(7))
model = nn.Sequential(nn.Linear(np.int64(4), np.prod((4, 2))), nn.Linear(8, np.int64(202)), nn.Linear(202, 1))
optimizer = torch.optim.Adam(model.parameters(), np.float64(0.01), fused=np.True_)
loader = DataLoader(Data(), ROWS, num_workers=np.int64(1), prefetch_factor=np.int64(3))
for x, y in loader:
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
end(model)
