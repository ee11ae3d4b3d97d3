"""Train a small mixture of experts that sends each token to one expert, up to that expert's capacity.

    python benchmarks/scan_loop.py
    python benchmarks/scan_loop.py --tiny --steps 20        # few tokens and small experts, for a CPU

As in Switch Transformers (arXiv 2101.03961) a token's place with its expert is the number of tokens before it that
chose the same one: a cumulative sum over tokens of the one-hot choices. Tokens beyond the capacity pass by.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, CLASSES = 32, 64


class Switch(nn.Module):
    def __init__(self, dim: int, hidden: int, experts: int, capacity_factor: float = 1.25) -> None:
        super().__init__()
        self.experts, self.capacity_factor = experts, capacity_factor
        self.router = nn.Linear(dim, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, dim, hidden) * dim**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, dim) * hidden**-0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (tokens, dim). Returns what the experts add, and the loss that spreads tokens over them."""
        tokens, dim = x.shape
        capacity = int(tokens / self.experts * self.capacity_factor)
        probs = self.router(x).softmax(dim=-1)
        gate, expert = probs.max(dim=-1)
        mask = F.one_hot(expert, self.experts)
        place = ((torch.cumsum(mask, dim=0) - 1) * mask).sum(dim=-1)
        kept = place < capacity
        slot = torch.where(kept, expert * capacity + place, self.experts * capacity)

        buffer = x.new_zeros(self.experts * capacity + 1, dim).index_copy(0, slot, x * kept.unsqueeze(-1))
        sorted_by_expert = buffer[:-1].view(self.experts, capacity, dim)
        answers = torch.bmm(F.gelu(torch.bmm(sorted_by_expert, self.up)), self.down).view(-1, dim)
        out = answers.index_select(0, slot.clamp(max=len(answers) - 1)) * (gate * kept).unsqueeze(-1)
        balance = self.experts * (mask.float().mean(dim=0) * probs.mean(dim=0)).sum()
        return out, balance


class Model(nn.Module):
    def __init__(self, dim: int, hidden: int, layers: int, experts: int) -> None:
        super().__init__()
        self.inp = nn.Linear(FEATURES, dim)
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])
        self.switches = nn.ModuleList([Switch(dim, hidden, experts) for _ in range(layers)])
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.inp(x)
        balance = x.new_zeros(())
        for norm, switch in zip(self.norms, self.switches, strict=True):
            out, spread = switch(norm(h))
            h = h + out
            balance = balance + spread
        return self.head(h), balance / len(self.norms)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=65536, help="of a batch")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--tiny", action="store_true", help="few tokens and small experts, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    dim, hidden, layers, tokens = (32, 64, 2, 512) if args.tiny else (256, 512, 4, args.tokens)

    torch.manual_seed(0)
    model = Model(dim, hidden, layers, args.experts).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = torch.randn(8 * tokens, FEATURES, device=args.device)
    labels = (data.sin() @ torch.randn(FEATURES, CLASSES, device=args.device)).argmax(dim=-1)

    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        first = (step % 8) * tokens
        x, y = data[first : first + tokens], labels[first : first + tokens]
        optimizer.zero_grad()
        logits, balance = model(x)
        loss = F.cross_entropy(logits, y) + 0.01 * balance
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            ms = (time.perf_counter() - start) * 1000 / 20
            print(f"step {step} loss {loss.item():.4f} {ms:.2f} ms/step", flush=True)
            start = time.perf_counter()


if __name__ == "__main__":
    main()
