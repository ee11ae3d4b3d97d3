import argparse
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class WindowLM(nn.Module):
    """Feed-forward character model over a fixed window."""

    def __init__(self, context, vocab=256, dim=64, width=768):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.inp = nn.Linear(context * dim, width)
        self.mid = nn.Linear(width, width // 2)
        self.head = nn.Linear(width // 2, vocab)

    def forward(self, x):
        h = F.gelu(self.inp(self.tok(x).flatten(1)))
        return self.head(F.gelu(self.mid(h)))


def corpus():
    root = pathlib.Path(os.__file__).parent
    text = b"".join(p.read_bytes() for p in sorted(root.glob("*.py"))[:80])
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def average_gradients(model, world):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= world


def sample(data, rng, batch, context):
    at = torch.randint(len(data) - context - 1, (batch,), generator=rng)
    window = data[at[:, None] + torch.arange(context + 1)].long()
    return window[:, :-1], window[:, -1]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--micro-batch", type=int, default=32)
    p.add_argument("--context", type=int, default=16)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = WindowLM(args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = corpus()
    cut = int(0.95 * len(data))
    train, val = data[:cut], data[cut:]
    rng = torch.Generator().manual_seed(100 + rank)

    start, step, running = time.time(), 0, torch.zeros(())
    for micro in range(args.steps * args.accum):
        x, y = sample(train, rng, args.micro_batch, args.context)
        loss = F.cross_entropy(model(x), y) / args.accum
        loss.backward()
        average_gradients(model, world)
        running += loss.detach()
        if (micro + 1) % args.accum == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                dist.all_reduce(running)
                if rank == 0:
                    print(f"step {step} loss {running.item() / world / 50:.3f} {time.time() - start:.1f}s", flush=True)
                running.zero_()

    model.eval()
    with torch.no_grad():
        x, y = sample(val, torch.Generator().manual_seed(rank), 512, args.context)
        val_loss = F.cross_entropy(model(x), y)
        dist.all_reduce(val_loss)
    if rank == 0:
        print(f"val loss {val_loss.item() / world:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
