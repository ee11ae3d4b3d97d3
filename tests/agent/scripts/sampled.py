"""A loop that sleeps in its dataset, its model and on its own; evaluates every so many steps."""

import sys
import time

import torch
from common import said
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.004)  # data
        return torch.full((4,), float(index)), torch.ones(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        time.sleep(0.02)  # forward
        return self.layer(x)


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    every, begins = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for at, (x, y) in enumerate(DataLoader(Slow(), 4)):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said(loss)
        time.sleep(0.02)  # other
        if at % every == begins % every:
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    model(x)
            model.train()


if __name__ == "__main__":
    main()
