"""Run with: torchrun --nproc-per-node 2 27_ddp_transformer.py"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TinyLM(nn.Module):
    def __init__(self, vocab, dim, depth, context):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(context, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.tok(ids) + self.pos[:n]
        return self.head(self.body(x, mask=self.mask[:n, :n], is_causal=True))


def wrap(model):
    return DDP(model, find_unused_parameters=True, broadcast_buffers=False)


def train(args):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = wrap(TinyLM(vocab=256, dim=32, depth=8, context=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    corpus = torch.randint(0, 256, (20_000,), generator=torch.Generator().manual_seed(rank))
    for step in range(args.steps):
        start = torch.randint(0, len(corpus) - 33, (4, 1))
        window = corpus[start + torch.arange(33)]
        logits = model(window[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 80)))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
