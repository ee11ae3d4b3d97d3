"""Denoising autoencoder over the identifiers of Python's standard library.

Every document is a window of source lines; the code is the hidden layer, later used
for nearest-neighbour search of similar code.
"""
import collections
import glob
import os
import random
import re
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
VOCAB = 24000 if CUDA else 500
HIDDEN = 1024 if CUDA else 32
BATCH = 1024 if CUDA else 16
STEPS = 700 if CUDA else 6
MAX_FILES = 600 if CUDA else 20
WINDOW = 40  # lines in a document
DROP = 0.3

WORD = re.compile(r"[A-Za-z_]{3,}")


def read_documents():
    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "**", "*.py"), recursive=True))
    documents, freq = [], collections.Counter()
    for path in files[:MAX_FILES]:
        with open(path, encoding="utf-8", errors="ignore") as f:
            lines = f.read().splitlines()
        for i in range(0, len(lines), WINDOW // 4):
            words = WORD.findall("\n".join(lines[i:i + WINDOW]))
            if len(words) > 20:
                documents.append(words)
                freq.update(words)
    vocab = {w: i for i, (w, _) in enumerate(freq.most_common(VOCAB))}
    coded = [np.array(sorted({vocab[w] for w in doc if w in vocab})) for doc in documents]
    return [c for c in coded if len(c) > 5], vocab


def vectorize(docs):
    """Documents to a batch of presence vectors."""
    batch = np.zeros((len(docs), VOCAB), dtype=np.float32)
    for row, ids in enumerate(docs):
        batch[row, ids] = 1.0
    return torch.from_numpy(batch).to(device)


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(VOCAB, HIDDEN)
        self.mid = nn.Sequential(nn.LayerNorm(HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU())
        self.dec = nn.Linear(HIDDEN, VOCAB)
        nn.init.constant_(self.dec.bias, -4.0)

    def forward(self, x):
        norm = x.sum(1, keepdim=True).clamp_min(1).rsqrt()
        return self.dec(self.mid(self.enc(x * norm)))


def batches(docs, seed=0):
    rng = random.Random(seed)
    while True:
        rng.shuffle(docs)
        for i in range(0, len(docs) - BATCH + 1, BATCH):
            yield docs[i:i + BATCH]


def main():
    torch.manual_seed(0)
    docs, vocab = read_documents()
    while len(docs) < BATCH:
        docs = docs + docs
    print(f"{len(docs)} documents, {len(vocab)} words")
    model = Coder().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=CUDA)
    source = batches(docs)
    running = torch.zeros((), device=device)
    start = time.time()
    for step in range(1, STEPS + 1):
        x = vectorize(next(source))
        noisy = x * (torch.rand_like(x) > DROP)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(noisy)
        loss = F.binary_cross_entropy_with_logits(logits.float(), x)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        running += loss.detach()
        if step % 50 == 0 or step == STEPS:
            print(f"step {step} bce {running.item() / 50:.5f} {(time.time() - start) / step * 1e3:.1f} ms/step", flush=True)
            running.zero_()


if __name__ == "__main__":
    main()
