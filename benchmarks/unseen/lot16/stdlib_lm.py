"""A small byte-level language model over Python's own source files."""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


def load_bytes(limit):
    root = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(root.glob("*.py")))
    return torch.frombuffer(bytearray(text[:limit]), dtype=torch.uint8).long()


class ByteLM(nn.Module):
    """Embedding, a gated recurrent stack and an output tied to the embedding."""

    def __init__(self, width=128, depth=2, dropout=0.1):
        super().__init__()
        self.tok = nn.Embedding(256, width)
        self.drop = nn.Dropout(dropout)
        self.rnn = nn.GRU(width, width, num_layers=depth, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(256))
        nn.init.normal_(self.tok.weight, std=0.05)

    def forward(self, ids, state=None):
        out, state = self.rnn(self.drop(self.tok(ids)), state)
        return F.linear(self.norm(out), self.tok.weight, self.bias), state


def draw(corpus, batch, context):
    start = torch.randint(len(corpus) - context - 1, (batch, 1))
    window = corpus[start + torch.arange(context + 1)]
    return window[:, :-1], window[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=550)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    torch.manual_seed(4)
    corpus = load_bytes(2_000_000)
    model = ByteLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=50)
    for step in range(1, args.steps + 1):
        ids, following = draw(corpus, args.batch, args.context)
        logits, _ = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        if step % 50 == 0:
            print(f"step {step}  bits per byte {loss.item() / 0.6931:.3f}")


if __name__ == "__main__":
    main()
