"""Train on several ranks that average gradients by hand, one after another when all are there.
torchrun --nproc-per-node 2 unbucketed_allreduce.py

cause: exchange-in-loop on cpu, communication on cuda
bound: communication
needs: ranks
place: line
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


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
    torch.manual_seed(0)
    # Wide on CUDA, so that the transfers and not their launches take the time.
    width, depth = (4096, 24) if cuda else (32, 48)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=cuda)
    x = torch.randn(64, width, device=device)
    for _ in range(2000):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)  # planted
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
