"""DDP over gloo, as long as it may: under torchrun, or by itself at a fixed port, [env | tcp | spawn] PORT.

env and tcp: one rank alone, by `env://` and by `tcp://`. spawn: two, that `torch.multiprocessing` starts.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(rank=-1, method=None, world=-1):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10**6):
        x = torch.randn(4, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    how, port = sys.argv[1:] or ("torchrun", "")
    if how == "torchrun":
        main()
    elif how == "env":
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
        main(0, "env://", 1)
    elif how == "tcp":
        main(0, f"tcp://127.0.0.1:{port}", 1)
    else:
        torch.multiprocessing.spawn(main, (f"tcp://localhost:{port}", 2), 2)
