"""Only forwards, under no_grad or inference_mode; with or without a loader."""

import sys

import torch
from common import ROWS, Data, batches, end, net
from torch.utils.data import DataLoader

model = net().eval()
with getattr(torch, sys.argv[1])():
    for _ in range(100 if "long" in sys.argv else 2):
        for x, _ in DataLoader(Data(), ROWS) if "loader" in sys.argv else batches():
            print("out", model(x).sum().item())
end(model)
