"""Train large embeddings with an AdamW that goes over every parameter operation by operation.

cause: bandwidth
bound: bandwidth
needs: cuda
place: function
"""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    rows = 65536 if args.device == "cuda" else 64
    tables = nn.ModuleList([nn.Embedding(rows, 256) for _ in range(16)]).to(args.device)
    optimizer = torch.optim.AdamW(tables.parameters(), lr=1e-3, foreach=False)  # planted
    index = torch.randint(rows, (256,), device=args.device)
    for _ in range(2000):
        loss = sum(table(index).square().mean() for table in tables)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
