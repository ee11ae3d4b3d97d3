"""Classify snippets of Python source by the standard-library package they come from."""

import collections
import pathlib
import re
import sysconfig
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PACKAGES = ["asyncio", "email", "unittest", "idlelib", "xml", "importlib", "json", "logging", "http", "multiprocessing"]
WORD = re.compile(r"[A-Za-z_]\w*|[^\w\s]")


class Vocabulary:
    def __init__(self, counter, size):
        self.words = ["<pad>", "<unk>"] + [w for w, _ in counter.most_common(size)]

    def __len__(self):
        return len(self.words)

    def encode(self, tokens):
        ids = []
        for token in tokens:
            if token in self.words:
                ids.append(self.words.index(token))
            else:
                ids.append(1)
        return ids


class Snippets(Dataset):
    def __init__(self, items, vocab, length):
        self.items = items
        self.vocab = vocab
        self.length = length

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        text, label = self.items[i]
        ids = self.vocab.encode(WORD.findall(text))[: self.length]
        ids += [0] * (self.length - len(ids))
        return torch.tensor(ids), label


class Classifier(nn.Module):
    def __init__(self, vocab_size, classes, dim=96):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, 128, 5, padding=2)
        self.head = nn.Linear(128, classes)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        return self.head(torch.relu(self.conv(x)).amax(2))


def load_items(lines=14):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    items = []
    for label, package in enumerate(PACKAGES):
        for path in sorted((root / package).rglob("*.py")):
            rows = path.read_text(errors="ignore").splitlines()
            for k in range(0, len(rows) - lines, lines):
                items.append(("\n".join(rows[k : k + lines]), label))
    return items


def main():
    torch.manual_seed(0)
    items = load_items()
    counter = collections.Counter(w for text, _ in items for w in WORD.findall(text))
    vocab = Vocabulary(counter, 6000)
    loader = DataLoader(Snippets(items, vocab, 96), batch_size=48, shuffle=True, drop_last=True, num_workers=2)
    model = Classifier(len(vocab), len(PACKAGES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8)
    step, start = 0, time.time()
    for epoch in range(3):
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} ({time.time() - start:.1f}s)")
            if step == 240:
                return


if __name__ == "__main__":
    main()
