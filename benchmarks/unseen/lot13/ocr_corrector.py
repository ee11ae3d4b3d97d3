"""Corrects single-character OCR confusions in scanned program listings."""

import glob
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTH = 96
CONFUSED = {"l": "1", "O": "0", "o": "c", "e": "c", "i": "j", "n": "h", "(": "{", ":": ";"}


def load_lines(count=4400):
    text = ""
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))):
        with open(path, encoding="ascii", errors="ignore") as f:
            text += " ".join(f.read().split()) + " "
        if len(text) > count * LENGTH:
            break
    codes = torch.tensor(list(text[: count * LENGTH].encode("ascii", "ignore")))
    return codes[: len(codes) // LENGTH * LENGTH].view(-1, LENGTH).clamp(max=127)


def scan(lines, generator, p=0.3):
    table = torch.arange(128)
    for good, bad in CONFUSED.items():
        table[ord(good)] = ord(bad)
    hit = torch.rand(lines.shape, generator=generator) < p
    return torch.where(hit, table[lines], lines)


def to_text(codes):
    return bytes(codes.tolist()).decode("ascii")


def levenshtein(a, b):
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


class CharacterErrors:
    def __init__(self):
        self.errors = 0
        self.total = 0

    def update(self, logits, targets):
        for hyp, ref in zip(logits.argmax(-1), targets):
            self.errors += levenshtein(to_text(ref), to_text(hyp))
            self.total += len(ref)

    def value(self):
        return self.errors / max(1, self.total)


class Corrector(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(128, dim)
        self.convs = nn.ModuleList([nn.Conv1d(dim, dim, 7, padding=3) for _ in range(2)])
        self.out = nn.Linear(dim, 128)

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        for conv in self.convs:
            h = h + F.relu(conv(h))
        return self.out(h.transpose(1, 2))


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    lines = load_lines()
    model = Corrector()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(1):
        cer = CharacterErrors()
        order = torch.randperm(len(lines), generator=generator)
        for step, idx in enumerate(order.split(16)):
            clean = lines[idx]
            logits = model(scan(clean, generator))
            loss = F.cross_entropy(logits.flatten(0, 1), clean.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cer.update(logits.detach(), clean)
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} cer {cer.value():.3f}", flush=True)


if __name__ == "__main__":
    main()
