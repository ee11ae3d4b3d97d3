"""Small transformer on synthetic review tokens; reports loss and achieved GFLOP/s."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode


def make_reviews(count, length, vocab, seed=0):
    gen = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (count, length), generator=gen)
    label = ((ids < vocab // 2).float().mean(1) > 0.5).long()
    return ids, label


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class Sentiment(nn.Module):
    def __init__(self, vocab, dim=64, depth=6, heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)).mean(1))


class Throughput:
    """GFLOP/s since the last report."""

    def __init__(self):
        self.flops = 0
        self.since = time.perf_counter()

    def report(self):
        now = time.perf_counter()
        rate = self.flops / (now - self.since) / 1e9
        self.flops, self.since = 0, now
        return rate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    ids, label = make_reviews(4000, 48, 2000)
    model = Sentiment(2000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    meter = Throughput()
    for step in range(1, args.steps + 1):
        pick = torch.randint(0, len(ids), (args.batch_size,))
        with FlopCounterMode(display=False) as counter:
            loss = F.cross_entropy(model(ids[pick]), label[pick])
            loss.backward()
        meter.flops += counter.get_total_flops()
        optimizer.step()
        optimizer.zero_grad()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.3f} {meter.report():.2f} GFLOP/s")


if __name__ == "__main__":
    main()
