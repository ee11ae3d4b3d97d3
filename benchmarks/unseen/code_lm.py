"""Next-token model on Python sources."""

import collections
import glob
import os
import random
import re
import sysconfig

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|\s+|[^\w\s]")
CONTEXT = 48


def split_tokens(path):
    with open(path, encoding="utf-8", errors="ignore") as f:
        return TOKEN.findall(f.read())


def build_vocab(paths, size=1500):
    counts = collections.Counter()
    for path in paths:
        counts.update(split_tokens(path))
    return {tok: i + 1 for i, (tok, _) in enumerate(counts.most_common(size - 1))}


class SourceWindows(Dataset):
    def __init__(self, paths, vocab, length):
        self.paths = paths
        self.vocab = vocab
        self.length = length

    def encode(self, path):
        return [self.vocab.get(tok, 0) for tok in split_tokens(path)]

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        ids = self.encode(self.paths[index % len(self.paths)])
        start = random.randrange(len(ids) - CONTEXT - 1)
        window = torch.tensor(ids[start : start + CONTEXT + 1])
        return window[:-1], window[1:]


class TokenModel(nn.Module):
    def __init__(self, vocab, dim=40):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.embed(x))
        return self.out(h)


def main():
    torch.manual_seed(0)
    root = sysconfig.get_paths()["stdlib"]
    paths = sorted(glob.glob(os.path.join(root, "*.py")))
    paths = [p for p in paths if 30_000 < os.path.getsize(p) < 90_000][:40]
    vocab = build_vocab(paths)
    data = SourceWindows(paths, vocab, length=16 * 130)
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    model = TokenModel(1500)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(2):
        for step, (x, y) in enumerate(loader):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
