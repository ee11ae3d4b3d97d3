"""Guess the standard library module that a source line comes from (bi-GRU over tokens)."""

import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MODULES = [
    "argparse",
    "ast",
    "calendar",
    "decimal",
    "_pydecimal",
    "difflib",
    "inspect",
    "logging/__init__",
    "mailbox",
    "pickle",
    "smtplib",
    "statistics",
    "subprocess",
    "tarfile",
    "threading",
    "zipfile",
]
MAX_TOKENS = 160
TOKEN = re.compile(r"\w+|[^\w\s]")


def read_corpus():
    root = Path(re.__file__).parent.parent
    lines, labels = [], []
    for label, name in enumerate(MODULES):
        path = root / f"{name}.py"
        if not path.exists():
            continue
        for line in path.read_text(encoding="utf8").splitlines():
            tokens = TOKEN.findall(line)[:MAX_TOKENS]
            if len(tokens) >= 3:
                lines.append(tokens)
                labels.append(label)
    counts = Counter(t for line in lines for t in line)
    vocab = {t: i + 2 for i, (t, _) in enumerate(counts.most_common(6000))}
    return [np.array([vocab.get(t, 1) for t in line]) for line in lines], labels, len(vocab) + 2


class Lines(Dataset):
    def __init__(self, encoded, labels):
        self.encoded, self.labels = encoded, labels

    def __len__(self):
        return len(self.encoded)

    def __getitem__(self, i):
        return self.encoded[i], self.labels[i]


def collate(items):
    lengths = torch.tensor([len(x) for x, _ in items])
    tokens = np.zeros((len(items), MAX_TOKENS), dtype=np.int64)
    for row, (x, _) in zip(tokens, items):
        row[: len(x)] = x
    return torch.from_numpy(tokens), lengths, torch.tensor([y for _, y in items])


class LineClassifier(nn.Module):
    def __init__(self, vocab, classes, dim=64, hidden=80):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, classes)

    def forward(self, tokens, lengths):
        h, _ = self.rnn(self.embed(tokens))
        keep = torch.arange(tokens.shape[1])[None, :] < lengths[:, None]
        h = h * keep[:, :, None]
        return self.out(h.sum(1) / lengths[:, None])


class Trainer:
    def __init__(self, model, loader, lr):
        self.model, self.loader = model, loader
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)

    def fit(self, steps):
        done, clock = 0, time.perf_counter()
        while done < steps:
            for tokens, lengths, y in self.loader:
                loss = nn.functional.cross_entropy(self.model(tokens, lengths), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                done += 1
                if done % 40 == 0:
                    now = time.perf_counter()
                    print(f"{done} loss {loss.item():.3f} {(now - clock) * 25:.1f} ms/step", flush=True)
                    clock = now
                if done == steps:
                    return


if __name__ == "__main__":
    torch.manual_seed(4)
    encoded, labels, vocab_size = read_corpus()
    loader = DataLoader(Lines(encoded, labels), batch_size=24, shuffle=True, collate_fn=collate)
    Trainer(LineClassifier(vocab_size, len(MODULES)), loader, lr=2e-3).fit(400)
