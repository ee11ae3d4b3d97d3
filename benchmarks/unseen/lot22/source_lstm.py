"""Character model of the Python standard library (two layer LSTM, truncated backpropagation)."""

import glob
import math
import os
import sysconfig
import time

import numpy as np
import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 700))
WINDOW, BATCH, HIDDEN = 48, 32, 192


def read_sources(limit=1_500_000):
    root = sysconfig.get_paths()["stdlib"]
    parts, size = [], 0
    for path in sorted(glob.glob(os.path.join(root, "*.py"))):
        with open(path, "rb") as source:
            parts.append(source.read())
        size += len(parts[-1])
        if size > limit:
            break
    raw = np.frombuffer(b"".join(parts), dtype=np.uint8)
    alphabet, codes = np.unique(raw, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), len(alphabet)


class Stream:
    """Cuts the text into BATCH parallel tracks and walks along them."""

    def __init__(self, codes):
        length = len(codes) // BATCH
        self.tracks = codes[:length * BATCH].view(BATCH, length)
        self.position = 0

    def next(self):
        if self.position + WINDOW + 1 > self.tracks.shape[1]:
            self.position = 0
        piece = self.tracks[:, self.position:self.position + WINDOW + 1]
        self.position += WINDOW
        return piece[:, :-1], piece[:, 1:]


class CharModel(nn.Module):
    def __init__(self, alphabet):
        super().__init__()
        self.embed = nn.Embedding(alphabet, 64)
        self.lstm = nn.LSTM(64, HIDDEN, num_layers=2, batch_first=True)
        self.out = nn.Linear(HIDDEN, alphabet)

    def forward(self, x, state=None):
        h, state = self.lstm(self.embed(x), state)
        return self.out(h), state


@torch.no_grad()
def bits_per_char(model, codes):
    model.eval()
    tracks = codes[:32 * 400].view(32, 400)
    logits, _ = model(tracks[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tracks[:, 1:].flatten())
    model.train()
    return loss.item() / math.log(2)


def main():
    torch.manual_seed(9)
    codes, alphabet = read_sources()
    cut = int(len(codes) * 0.95)
    stream = Stream(codes[:cut])
    model = CharModel(alphabet)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    state, running = None, torch.zeros(())
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        x, y = stream.next()
        if state is not None:
            state = tuple(s.detach() for s in state)
        logits, state = model(x, state)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += loss.detach()
        if step % 50 == 0:
            print(f"step {step:4d}  train loss {running.item() / 50:.4f}")
            running.zero_()
        if step % 175 == 0:
            print(f"           held-out bits/char {bits_per_char(model, codes[cut:]):.3f}")
    took = time.perf_counter() - begin
    print(f"{STEPS} steps, {took / STEPS * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
