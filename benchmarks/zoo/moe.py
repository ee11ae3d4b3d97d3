"""Train a mixture of experts to guess the next byte of Python source text from the 16 before it.

    python moe.py
    python moe.py --tiny --steps 20        # few and small experts, for a CPU

Six layers of 16 experts, two of them for each token. The text is the standard library of the Python that
runs this.
"""

import argparse
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB = 256
CONTEXT = 16


class ByteDataset(Dataset):
    def __init__(self, block):
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(p.read_bytes() for p in sorted(stdlib.glob("*.py")))[:4_000_000]
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.block = block

    def __len__(self):
        return (len(self.tokens) - CONTEXT) // self.block

    def __getitem__(self, i):
        chunk = self.tokens[i * self.block : (i + 1) * self.block + CONTEXT]
        return chunk[:-1], chunk[CONTEXT:]


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MoE(nn.Module):
    def __init__(self, dim, hidden, experts, top):
        super().__init__()
        self.top = top
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim, hidden) for _ in range(experts)])

    def forward(self, x):
        """x: (tokens, dim). Returns the experts' answers and the loss that spreads tokens over them."""
        probs = torch.softmax(self.router(x), dim=-1)
        weights, chosen = torch.topk(probs, self.top, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        load = []
        for number, expert in enumerate(self.experts):
            rows, slots = torch.nonzero(chosen == number, as_tuple=True)
            load.append(len(rows) / len(x))
            if len(rows) == 0:
                continue
            out[rows] += weights[rows, slots].unsqueeze(1) * expert(x[rows])
        load = torch.tensor(load, device=x.device)
        return out, len(self.experts) * (load * probs.mean(dim=0)).sum()


class Model(nn.Module):
    def __init__(self, dim, hidden, layers, experts, top):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.inp = nn.Linear(64 * CONTEXT, dim)
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])
        self.moes = nn.ModuleList([MoE(dim, hidden, experts, top) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, x):
        """x: (batch, block + CONTEXT - 1). Returns logits (batch * block, VOCAB) and the balancing loss."""
        windows = x.unfold(1, CONTEXT, 1).reshape(-1, CONTEXT)
        h = self.inp(self.embed(windows).flatten(1))
        balance = 0.0
        for norm, moe in zip(self.norms, self.moes):
            out, spread = moe(norm(h))
            h = h + out
            balance = balance + spread
        return self.head(self.norm(h)), balance / len(self.moes)


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="few and small experts, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.block, args.dim, args.hidden, args.layers, args.experts, args.top = 256, 384, 768, 6, 16, 2
    if args.tiny:
        args.block, args.dim, args.hidden, args.layers, args.experts = 16, 32, 64, 2, 4
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader = DataLoader(ByteDataset(args.block), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Model(args.dim, args.hidden, args.layers, args.experts, args.top).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    step, total, start = 0, 0.0, time.perf_counter()
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            logits, balance = model(x)
            loss = F.cross_entropy(logits, y.reshape(-1)) + 0.01 * balance
            loss.backward()
            optimizer.step()
            total += loss.item()
            step += 1
            if step % args.log_every == 0:
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                print(f"step {step} loss {loss.item():.4f} mean {total / step:.4f} {ms:.2f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
