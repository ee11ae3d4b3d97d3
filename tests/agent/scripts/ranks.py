"""DDP over gloo: under torchrun, or spawned by torch.multiprocessing (`spawn PORT`). With `long` it would go on."""

import os
import sys

import torch
import torch.distributed as dist
from common import batches, net
from torch.nn.parallel import DistributedDataParallel


def main(rank, world, steps):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(steps):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("last", repr(loss.item()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
        torch.multiprocessing.spawn(main, (2, 12), 2)
    else:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 10**6 if "long" in sys.argv else 12)
