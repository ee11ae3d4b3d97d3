"""Train a chain of elementwise layers and give all unused memory back to the driver in every step.

cause: allocator
bound: memory
needs: cuda
place: line
"""

import argparse

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    rows = 6144 if args.device == "cuda" else 16
    weight = torch.ones(1024, device=args.device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    x = torch.randn(rows, 1024, device=args.device)
    for _ in range(2000):
        y = x * weight
        for _ in range(16):
            y = torch.tanh(y)  # 24 MiB on CUDA, each a piece of memory of its own
        loss = y.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del y, loss
        torch.cuda.empty_cache()  # planted


if __name__ == "__main__":
    main()
