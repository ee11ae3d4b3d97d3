"""Train on samples that come from a store that takes its time, with fewer workers than that takes.

cause: input
bound: input
needs: cpu
place: function Store.__getitem__
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Store(Dataset):
    """Each read waits for the network."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((256,), index / len(self)), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    loader = DataLoader(Store(), batch_size=16, shuffle=True, num_workers=1, pin_memory=cuda)  # planted
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        x, y = x.to(args.device, non_blocking=True), y.to(args.device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
