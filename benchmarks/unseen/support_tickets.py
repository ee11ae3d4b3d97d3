import os
import random
import re

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = (
    "printer invoice refund login password screen driver update battery charger "
    "delayed shipping address billing account error crash reboot network cable"
).split()


def fake_ticket(rng):
    parts = []
    for _ in range(rng.randint(120, 200)):
        w = rng.choice(WORDS)
        if rng.random() < 0.1:
            w = w.upper() + "-" + str(rng.randint(1, 999))
        parts.append(w + rng.choice(["", "", "", ",", ".", "!"]))
    return " ".join(parts)


class Tokenizer:
    pattern = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]")

    def __init__(self, texts, size=1500):
        pieces = {}
        for t in texts:
            for w in self.pattern.findall(t.lower()):
                for k in range(len(w)):
                    for j in range(k + 1, min(len(w), k + 4) + 1):
                        pieces[w[k:j]] = pieces.get(w[k:j], 0) + 1
        best = sorted(pieces, key=pieces.get, reverse=True)[:size]
        self.vocab = {p: i + 2 for i, p in enumerate(best)}

    def encode(self, text, limit=256):
        ids = []
        for word in self.pattern.findall(text.lower()):
            pos = 0
            while pos < len(word):
                for width in (4, 3, 2, 1):
                    piece = self.vocab.get(word[pos : pos + width])
                    if piece is not None:
                        break
                ids.append(piece or 1)
                pos += width
        ids = ids[:limit]
        return ids + [0] * (limit - len(ids))


class TicketDataset(Dataset):
    def __init__(self, texts, labels, tokenizer):
        self.texts = texts
        self.labels = labels
        self.tokenizer = tokenizer

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        i = i % len(self.texts)
        return torch.tensor(self.tokenizer.encode(self.texts[i])), self.labels[i]


if __name__ == "__main__":
    steps = int(os.environ.get("STEPS", 80))
    rng = random.Random(0)
    texts = [fake_ticket(rng) for _ in range(600)]
    labels = [t.count("refund") % 3 for t in texts]
    data = TicketDataset(texts, labels, Tokenizer(texts[:100]))
    loader = DataLoader(data, batch_size=96)
    model = nn.Sequential(nn.EmbeddingBag(1502, 128, padding_idx=0), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (ids, y) in zip(range(steps), loader):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(ids), y)
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print("step", step, "loss", loss.item())
