"""Train and keep the loss of every step for a curve, with all that its graph holds.

cause: allocator
bound: memory
needs: cuda
place: function
"""

import argparse

import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    rows = 6144 if args.device == "cuda" else 16
    weight = torch.ones(1024, device=args.device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    x = torch.randn(rows, 1024, device=args.device)
    history = []
    for _ in range(args.steps):
        y = x * weight
        for _ in range(16):
            y = torch.tanh(y)  # 24 MiB on CUDA, each a piece of memory of its own
        loss = y.mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)  # planted


if __name__ == "__main__":
    main()
