"""Run with: torchrun --nproc-per-node 2 28_ddp_speech.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

STEPS = int(os.environ.get("STEPS", 80))
BATCH = 8
MELS = 40


class Recognizer(nn.Module):
    def __init__(self, hidden=96, classes=30):
        super().__init__()
        self.front = nn.Conv1d(MELS, hidden, 5, stride=2, padding=2)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        x = torch.relu(self.front(x.transpose(1, 2))).transpose(1, 2)
        y, _ = self.rnn(x)
        return self.out(y.mean(1))


def load_utterances(n=320):
    g = torch.Generator().manual_seed(0)
    lengths = (30 + 570 * torch.rand(n, generator=g) ** 3).int().tolist()
    lengths.sort()
    return [(torch.randn(length, MELS, generator=g), i % 30) for i, length in enumerate(lengths)]


def shard(items, rank, world):
    size = len(items) // world
    return items[rank * size : (rank + 1) * size]


def batches(items, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randperm(len(items) // BATCH, generator=g) * BATCH
        for s in starts.tolist():
            part = items[s : s + BATCH]
            x = pad_sequence([u for u, _ in part], batch_first=True)
            yield x, torch.tensor([label for _, label in part])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    mine = shard(load_utterances(), rank, world)
    model = DDP(Recognizer())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for step, (x, y) in zip(range(STEPS), batches(mine, seed=1)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
