"""Small character model over cleaned library sources."""

import glob
import os
import re

import torch
from torch import nn

CONTEXT = 48
BATCH = 32


def read_documents(count):
    root = os.path.dirname(os.__file__)
    documents = []
    for path in sorted(glob.glob(os.path.join(root, "**", "*.py"), recursive=True)):
        if "site-packages" in path:
            continue
        with open(path, encoding="utf-8", errors="ignore") as file:
            text = file.read()
        if len(text) > 3000:
            documents.append(text[:3000])
        if len(documents) == count:
            break
    return documents


def build_aliases():
    aliases = {}
    for name in ["self", "cls", "args", "kwargs", "data", "name", "value", "path", "other"]:
        for suffix in [
            "_",
            "0",
            "1",
            "2",
            "3",
            "_list",
            "_dict",
            "_id",
            "_str",
            "_len",
            "s",
            "_new",
            "_old",
            "_a",
            "_b",
            "_x",
            "_y",
            "_in",
            "_out",
            "_max",
            "_min",
            "_sum",
            "_cnt",
            "_tmp",
            "_ref",
            "_raw",
            "_key",
            "_map",
            "_set",
            "_obj",
            "_arg",
            "_ptr",
            "_idx",
            "_pos",
            "_end",
            "_fmt",
            "_buf",
            "_ctx",
        ]:
            aliases[name + suffix] = name
    return aliases


class Cleaner:
    def __init__(self, aliases):
        self.spaces = re.compile(r"[ \t]+$", re.MULTILINE)
        self.aliases = [(re.compile(rf"\b{alias}\b"), name) for alias, name in aliases.items()]

    def __call__(self, text):
        text = self.spaces.sub("", text)
        for pattern, name in self.aliases:
            text = pattern.sub(name, text)
        return text


def batches(documents, cleaner, generator):
    for document in documents:
        text = cleaner(document)
        ids = torch.tensor([min(ord(c), 127) for c in text])
        starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH,), generator=generator)
        windows = ids[starts[:, None] + torch.arange(CONTEXT + 1)]
        yield windows[:, :-1], windows[:, 1:]


class CharModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 128)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def main():
    torch.manual_seed(0)
    documents = read_documents(220)
    cleaner = Cleaner(build_aliases())
    generator = torch.Generator().manual_seed(1)
    model = CharModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step, (x, y) in enumerate(batches(documents, cleaner, generator)):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
