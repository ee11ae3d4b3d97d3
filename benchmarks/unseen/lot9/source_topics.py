"""Predict which standard-library package a snippet of Python comes from."""

import collections
import pathlib
import re
import sysconfig

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

PACKAGES = ["asyncio", "email", "json", "logging", "unittest", "xml", "http", "concurrent", "multiprocessing"]
WORD = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]")


def load_snippets(lines_per_snippet=32):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    snippets = []
    for label, package in enumerate(PACKAGES):
        for path in sorted((root / package).rglob("*.py")):
            lines = path.read_text(encoding="utf-8", errors="ignore").splitlines()
            for i in range(0, len(lines) - lines_per_snippet, lines_per_snippet):
                snippets.append(("\n".join(lines[i : i + lines_per_snippet]), label))
    return snippets


class PairTokenizer:
    """Byte-pair style subwords, learned on the most frequent words."""

    def __init__(self, texts, n_merges=120):
        counts = collections.Counter(w for t in texts for w in WORD.findall(t.lower()))
        words = {tuple(w): c for w, c in counts.most_common(600)}
        self.merges = []
        for _ in range(n_merges):
            pairs = collections.Counter()
            for symbols, c in words.items():
                for pair in zip(symbols, symbols[1:]):
                    pairs[pair] += c
            best = pairs.most_common(1)[0][0]
            self.merges.append(best)
            words = {tuple(self.merge(symbols, best)): c for symbols, c in words.items()}
        self.rank = {pair: r for r, pair in enumerate(self.merges)}
        symbols = {a + b for a, b in self.merges} | set("".join(counts))
        self.ids = {s: i + 2 for i, s in enumerate(sorted(symbols))}

    @staticmethod
    def merge(symbols, pair):
        out, i = [], 0
        while i < len(symbols):
            if tuple(symbols[i : i + 2]) == pair:
                out.append(symbols[i] + symbols[i + 1])
                i += 2
            else:
                out.append(symbols[i])
                i += 1
        return out

    def split_word(self, word):
        symbols = list(word)
        while len(symbols) > 1:
            pair = min(zip(symbols, symbols[1:]), key=lambda p: self.rank.get(p, 1 << 30))
            if pair not in self.rank:
                break
            symbols = self.merge(symbols, pair)
        return [self.ids.get(s, 1) for s in symbols]

    def encode(self, text):
        return [i for w in WORD.findall(text.lower()) for i in self.split_word(w)]


class Snippets(Dataset):
    def __init__(self, snippets, tokenizer, max_len=200):
        self.snippets, self.tokenizer, self.max_len = snippets, tokenizer, max_len

    def __len__(self):
        return len(self.snippets)

    def __getitem__(self, i):
        text, label = self.snippets[i]
        ids = self.tokenizer.encode(text)[: self.max_len] or [1]
        return torch.tensor(ids), label


def collate(samples):
    ids = nn.utils.rnn.pad_sequence([s[0] for s in samples], batch_first=True)
    return ids, torch.tensor([s[1] for s in samples])


def main():
    torch.manual_seed(0)
    snippets = load_snippets()
    tokenizer = PairTokenizer([t for t, _ in snippets])
    loader = DataLoader(
        Snippets(snippets, tokenizer),
        batch_size=48,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        collate_fn=collate,
        persistent_workers=True,
    )
    embed = nn.Embedding(len(tokenizer.ids) + 2, 32, padding_idx=0)
    conv = nn.Conv1d(32, 32, 3, padding=1)
    head = nn.Linear(32, len(PACKAGES))
    optimizer = torch.optim.Adam(nn.ModuleList([embed, conv, head]).parameters(), lr=2e-3)
    for epoch in range(4):
        for step, (ids, labels) in enumerate(loader):
            hidden = F.relu(conv(embed(ids).transpose(1, 2)))
            loss = F.cross_entropy(head(hidden.amax(dim=2)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} steps {step + 1} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
