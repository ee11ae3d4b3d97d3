"""Train a small GPT with hand-written attention, in float32, on several GPUs: DistributedDataParallel under torchrun.

torchrun --nproc-per-node 2 ranks.py --tiny
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from window import Model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    words, dim, heads, layers, rows, length = (64, 32, 2, 2, 2, 48) if args.tiny else (8192, 512, 8, 6, 8, 512)
    torch.manual_seed(0)
    model = Model(words, dim, heads, layers, length, length).to(device)
    model = DistributedDataParallel(model, device_ids=[local] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(1 + dist.get_rank())
    text = torch.randint(words, (64, rows, length + 1), device=device)
    for step in range(4000):
        tokens = text[step % len(text)]
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
