"""A loop whose loader's workers, where it has any, end after some samples: abort, exit, kill or raise."""

import os
import signal
import sys
import time

import torch
from torch import nn


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None and index >= 12:
            how = sys.argv[1]
            if how == "abort":
                os.abort()
            if how == "exit":
                os._exit(3)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("planted")
        return torch.zeros(100)


model = nn.Linear(100, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(1000):
    for x in torch.utils.data.DataLoader(Data(), batch_size=4):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
