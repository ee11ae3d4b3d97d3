"""Masked-token pretraining of a small encoder on documentation text."""

import collections
import glob
import os
import re
import sysconfig

import torch
import torch.nn as nn

PAD, MASK, UNK = 0, 1, 2
VOCAB = 6000
LENGTH = 48


def load_corpus():
    root = sysconfig.get_paths()["stdlib"]
    words = []
    for path in sorted(glob.glob(os.path.join(root, "*.py")))[:120]:
        with open(path, encoding="utf-8", errors="ignore") as f:
            words += re.findall(r"[A-Za-z]+|[^\sA-Za-z]", f.read().lower())
    common = [w for w, _ in collections.Counter(words).most_common(VOCAB - 3)]
    index = {w: i + 3 for i, w in enumerate(common)}
    ids = torch.tensor([index.get(w, UNK) for w in words])
    return ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)


def corrupt(tokens, generator, rate=0.15):
    chosen = torch.rand(tokens.shape, generator=generator) < rate
    targets = torch.where(chosen, tokens, torch.full_like(tokens, -100))
    return tokens.masked_fill(chosen, MASK), targets


class MaskedLM(nn.Module):
    def __init__(self, dim=96, layers=1):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, dim)
        self.positions = nn.Parameter(torch.zeros(LENGTH, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.decoder = nn.Linear(dim, VOCAB)

    def forward(self, tokens, targets):
        hidden = self.encoder(self.tokens(tokens) + self.positions)
        scores = self.decoder(self.transform(hidden))
        return nn.functional.cross_entropy(scores.view(-1, VOCAB), targets.view(-1), ignore_index=-100)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    corpus = load_corpus()
    model = MaskedLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=30)
    order = torch.randperm(len(corpus), generator=generator)
    for step in range(160):
        rows = order[step * 12 : (step + 1) * 12]
        tokens, targets = corrupt(corpus[rows], generator)
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
