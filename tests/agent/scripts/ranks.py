"""DDP over gloo: under torchrun, or spawned by torch.multiprocessing (`spawn PORT`), or one rank (`alone PORT RANK`).
With `long` it would go on. With `fails` the second rank dies the first time that torchrun starts it."""

import os
import sys

import torch
import torch.distributed as dist
from common import batches, net
from torch.nn.parallel import DistributedDataParallel


def of_start():
    """torchrun's store, without what the ranks before a restart left in it: gloo would now and then meet those."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)


def main(rank, world, steps):
    dist.init_process_group("gloo", rank=rank, world_size=world, store=of_start() if "fails" in sys.argv else None)
    torch.manual_seed(0)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for at, (x, y) in enumerate(batches(steps)):
        if "fails" in sys.argv and at == 6 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(3)
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
        if sys.argv[1] == "alone":
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2], RANK=sys.argv[3], WORLD_SIZE="2")
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 10**6 if "long" in sys.argv else 12)
