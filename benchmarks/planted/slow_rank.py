"""Train with DistributedDataParallel where one rank reads from a slower disk. torchrun --nproc-per-node 2 slow_rank.py

cause: straggler
bound: communication
needs: ranks
place: function
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Disk(Dataset):
    def __init__(self, rank):
        self.seconds = 0.008 if rank == 1 else 0.0

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(self.seconds)  # planted
        return torch.full((256,), index / len(self)), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    dist.init_process_group("nccl" if cuda else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    loader = DataLoader(Disk(dist.get_rank()), batch_size=8, pin_memory=cuda)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
