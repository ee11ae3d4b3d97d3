"""Run with: torchrun --nproc-per-node 2 25_ddp_accumulate.py"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = int(os.environ.get("STEPS", 80))
MICRO_BATCHES = 8


class Ranker(nn.Module):
    def __init__(self, d=256, width=896):
        super().__init__()
        self.up = nn.Linear(d, width)
        self.mid = nn.Linear(width, width)
        self.down = nn.Linear(width, 1)

    def forward(self, x):
        return self.down(torch.relu(self.mid(torch.relu(self.up(x))))).squeeze(-1)


def micro_batches(gen, n, size=8, d=256):
    for _ in range(n):
        x = torch.randn(size, d, generator=gen)
        yield x, x[:, :4].sum(1)


def optimizer_step(model, optimizer, gen):
    optimizer.zero_grad()
    total = 0.0
    for i, (x, y) in enumerate(micro_batches(gen, MICRO_BATCHES)):
        loss = nn.functional.mse_loss(model(x), y) / MICRO_BATCHES
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Ranker())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(STEPS):
        loss = optimizer_step(model, optimizer, gen)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
