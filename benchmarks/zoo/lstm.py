"""Train an LSTM to guess the next byte of Python source text, cell by cell.

    python lstm.py
    python lstm.py --tiny --steps 20        # thin layers and short windows, for a CPU

64 streams are read side by side, 64 bytes a step, and the state is carried from step to step. The text is the
standard library of the Python that runs this.
"""

import argparse
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 256


def read_streams(streams):
    """Bytes of the standard library as (streams, length)."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(p.read_bytes() for p in sorted(stdlib.glob("*.py")))[:4_000_000]
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    length = len(tokens) // streams
    return tokens[: streams * length].view(streams, length)


def get_batch(data, step, window):
    """The `step`th window of all streams and what comes next; begins anew at the end."""
    windows = (data.size(1) - 1) // window
    start = step % windows * window
    return data[:, start : start + window], data[:, start + 1 : start + window + 1]


class LanguageModel(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.cells = nn.ModuleList([nn.LSTMCell(dim, dim) for _ in range(layers)])
        self.head = nn.Linear(dim, VOCAB)

    def initial_state(self, batch):
        weight = self.head.weight
        return [(weight.new_zeros(batch, weight.size(1)), weight.new_zeros(batch, weight.size(1))) for _ in self.cells]

    def forward(self, x, state):
        """x: (batch, window). Returns logits (batch, window, VOCAB) and the state after them."""
        state = list(state)
        embedded = self.embed(x)
        outputs = []
        for t in range(x.size(1)):
            h = embedded[:, t]
            for layer, cell in enumerate(self.cells):
                state[layer] = cell(h, state[layer])
                h = state[layer][0]
            outputs.append(h)
        return self.head(torch.stack(outputs, dim=1)), state


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="thin layers and short windows, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.window, args.dim, args.layers = 64, 1024, 2
    if args.tiny:
        args.window, args.dim, args.batch_size = 16, 32, 8
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    data = read_streams(args.batch_size)
    model = LanguageModel(args.dim, args.layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    state = model.initial_state(args.batch_size)
    total, start = 0.0, time.perf_counter()
    for step in range(1, args.steps + 1):
        x, y = get_batch(data, step - 1, args.window)
        x, y = x.to(device), y.to(device)
        state = [(h.detach(), c.detach()) for h, c in state]
        optimizer.zero_grad()
        logits, state = model(x, state)
        loss = F.cross_entropy(logits.view(-1, VOCAB), y.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total += loss.item()
        if step % args.log_every == 0:
            ms = (time.perf_counter() - start) * 1000 / args.log_every
            print(f"step {step} loss {loss.item():.4f} mean {total / step:.4f} {ms:.2f} ms/step")
            start = time.perf_counter()


if __name__ == "__main__":
    main()
