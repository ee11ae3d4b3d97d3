"""Train on sequences whose length is another one in each step, with most of the memory that the process may use in use.

cause: allocator
bound: memory
needs: cuda
place: function
"""

import argparse
import random

import torch
from torch import nn

WIDTH, DEPTH, LEAST, MOST = 512, 6, 200, 1000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 8, batch_first=True)
        self.ahead = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm(x), self.norm(x), self.norm(x))[0]
        return x + self.ahead(x)


def peak_of_the_longest(step):
    """Bytes that a step of the longest sequence takes."""
    step(MOST)
    torch.cuda.reset_peak_memory_stats()
    step(MOST)
    return torch.cuda.max_memory_allocated()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(*[Block() for _ in range(DEPTH)]).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(length):
        x = torch.randn(16, length, WIDTH, device=args.device)  # planted
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    if args.device == "cuda":
        share = 1.1 * peak_of_the_longest(step) / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(share)
    for _ in range(2000):
        step(random.randint(LEAST, MOST))


if __name__ == "__main__":
    main()
