"""Train a deep network that its script compiles itself, with activations that are cheap to compute again.

    python benchmarks/lever_wins/compiled.py
    python benchmarks/lever_wins/compiled.py --tiny        # on a CPU

activation-budget should save memory here: norms, activations and products of a gate are most of what the backward
keeps, and cost little beside the matrix products.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.gate, self.down = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = F.gelu(self.gate(y)).tanh() * F.silu(self.up(y)).sigmoid()
        return x + self.down(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, layers, rows = (256, 12, 8192) if args.tiny else (2048, 24, 16384)
    model = nn.Sequential(*(Block(width) for _ in range(layers))).to(device)
    model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    begun = time.perf_counter()
    for step in range(args.steps):
        x = torch.randn(rows, width, device=device)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.4f} {(time.perf_counter() - begun) * 100:.1f} ms/step")
            begun = time.perf_counter()


if __name__ == "__main__":
    main()
