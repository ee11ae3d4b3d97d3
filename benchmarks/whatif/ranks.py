"""The what-if pairs of two ranks; as train.py, under torchrun.

torchrun --standalone --nproc-per-node 2 ranks.py straggler --steps 60
torchrun --standalone --nproc-per-node 2 ranks.py straggler overlap --compare    # a JSON line each, from rank 0
"""

import json
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train import TINY, Block, Step, arguments, compare

ONE_BUCKET = 100_000
"""MB of a bucket that takes all gradients, so that nothing is sent before the backward has ended."""


def ddp_step(width: int, depth: int, rows: int, late_ms: float = 0.0, bucket_mb: int | None = None) -> Step:
    """One step of data-parallel training; late_ms: what the second rank does on its host besides."""
    if TINY:
        width, depth, rows = 64, 2, 32
    device = torch.device("cpu" if TINY else f"cuda:{os.environ['LOCAL_RANK']}")
    torch.manual_seed(0)
    stack = nn.Sequential(*[Block(width) for _ in range(depth)]).to(device)
    model = DistributedDataParallel(stack, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = torch.randn(rows, width, device=device), torch.randn(rows, width, device=device)
    late_s = late_ms / 1000 if dist.get_rank() == 1 else 0.0

    def step() -> None:
        time.sleep(late_s)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def straggler(fixed: bool) -> Step:
    return ddp_step(1024, 8, 1024, late_ms=0.0 if fixed else 25.0)


def overlap(fixed: bool) -> Step:
    return ddp_step(2048, 12, 2048, bucket_mb=None if fixed else ONE_BUCKET)


PAIRS: dict[str, tuple[Callable[[bool], Step], str]] = {
    "straggler": (straggler, "no_straggler"),
    "overlap": (overlap, "perfect_overlap"),
}


def main() -> None:
    args = arguments(__doc__, PAIRS)
    if not TINY:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if TINY else "nccl")
    for name in args.pair if args.compare else ():
        make, change = PAIRS[name]
        row = compare(name, change, make(False), make(True), args.steps)
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
    if not args.compare:
        step = PAIRS[args.pair[0]][0](args.fixed)
        for _ in range(args.steps):
            step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
