"""Character-level repair of corrupted lines: predict for every position the right character or nothing."""
import glob
import os
import random
import string
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
LENGTH = 64
DIM = 512 if CUDA else 32
LAYERS = 6 if CUDA else 1
BATCH = 384 if CUDA else 8
STEPS = 500 if CUDA else 4
LINES = 60000 if CUDA else 300
SAMPLE = 48  # rows used for the error rate

ALPHABET = sorted(set(string.ascii_letters + string.digits + string.punctuation + " "))
NOTHING = len(ALPHABET)
CODE = {c: i for i, c in enumerate(ALPHABET)}


def load_lines():
    rng = random.Random(0)
    lines = []
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, encoding="utf-8", errors="ignore") as f:
            for line in f:
                line = "".join(c for c in line.strip() if c in CODE)
                if len(line) > 24:
                    lines.append(line)
    rng.shuffle(lines)
    while len(lines) < LINES:
        lines = lines + lines
    return lines[:LINES]


def corrupt(line, rng):
    """Replace some characters, insert others; the target of an inserted one is NOTHING."""
    src, dst = [], []
    for c in line:
        dice = rng.random()
        if dice < 0.06:
            src.append(rng.randrange(NOTHING))
            dst.append(NOTHING)
        src.append(rng.randrange(NOTHING) if 0.06 < dice < 0.12 else CODE[c])
        dst.append(CODE[c])
    pad = [NOTHING] * LENGTH
    return (src + pad)[:LENGTH], (dst + pad)[:LENGTH]


def distance(a, b):
    previous = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        current = [i]
        for j, cb in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (ca != cb)))
        previous = current
    return previous[-1]


def error_rate(logits, target):
    guess = logits[:SAMPLE].argmax(-1).tolist()
    truth = target[:SAMPLE].tolist()
    wrong = total = 0
    for g, t in zip(guess, truth):
        g = [c for c in g if c != NOTHING]
        t = [c for c in t if c != NOTHING]
        wrong += distance(g, t)
        total += len(t)
    return wrong / max(total, 1)


class Repair(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(NOTHING + 1, DIM)
        self.pos = nn.Parameter(torch.randn(LENGTH, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, 8, 4 * DIM, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, NOTHING + 1)

    def forward(self, x):
        return self.head(self.body(self.emb(x) + self.pos))


def main():
    torch.manual_seed(0)
    rng = random.Random(1)
    pairs = torch.tensor([corrupt(line, rng) for line in load_lines()]).to(device)
    model = Repair().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-4, fused=CUDA)
    cer = None
    start = time.time()
    for step in range(1, STEPS + 1):
        batch = pairs[torch.randint(0, len(pairs), (BATCH,), device=device)]
        src, dst = batch[:, 0], batch[:, 1]
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(src)
        loss = F.cross_entropy(logits.float().flatten(0, 1), dst.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        rate = error_rate(logits.detach(), dst)
        cer = rate if cer is None else 0.95 * cer + 0.05 * rate
        if step % 50 == 0 or step == STEPS:
            print(f"step {step} loss {loss.item():.4f} cer {cer:.4f} {(time.time() - start) / step * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
