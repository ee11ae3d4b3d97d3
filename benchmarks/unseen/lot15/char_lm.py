"""Character LSTM language model on the source of a few standard library modules."""

import argparse
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


def load_text():
    root = Path(argparse.__file__).parent
    text = "".join((root / f"{m}.py").read_text(encoding="utf8") for m in ("argparse", "tarfile", "typing", "heapq"))
    symbols = sorted(set(text))
    lookup = {c: i for i, c in enumerate(symbols)}
    return torch.tensor([lookup[c] for c in text]), len(symbols)


def streams(ids, lanes, span):
    """Contiguous chunks for truncated backpropagation: (inputs, targets, is_first)."""
    width = (len(ids) - 1) // lanes
    x = ids[: lanes * width].view(lanes, width).t().contiguous()
    y = ids[1 : lanes * width + 1].view(lanes, width).t().contiguous()
    while True:
        for at in range(0, width - span, span):
            yield x[at : at + span], y[at : at + span], at == 0


class CharLM(nn.Module):
    def __init__(self, symbols, dim=48, hidden=320):
        super().__init__()
        self.embed = nn.Embedding(symbols, dim)
        self.lstm = nn.LSTM(dim, hidden)
        self.out = nn.Linear(hidden, symbols)

    def forward(self, x, state):
        h, state = self.lstm(self.embed(x), state)
        return self.out(h), state


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=1400)
    p.add_argument("--lanes", type=int, default=32)
    p.add_argument("--span", type=int, default=40)
    args = p.parse_args()

    torch.manual_seed(7)
    ids, symbols = load_text()
    model = CharLM(symbols)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    state, began = None, time.perf_counter()
    for step, (x, y, first) in zip(range(1, args.steps + 1), streams(ids, args.lanes, args.span)):
        state = None if first or state is None else tuple(s.detach() for s in state)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, state = model(x, state)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 50 == 0:
            now = time.perf_counter()
            print(f"step {step} loss {loss.item():.3f} {(now - began) * 20:.1f} ms/step", flush=True)
            began = now


if __name__ == "__main__":
    main()
