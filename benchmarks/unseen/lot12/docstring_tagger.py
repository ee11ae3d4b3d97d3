"""Predicts the package of a piece of source text; batches hold texts of like length."""

import glob
import os
import random
import re
import zlib

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

VOCAB = 8192
TOKEN = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]")


def read_texts(limit):
    texts, labels = [], []
    root = os.path.dirname(os.__file__)
    packages = ["asyncio", "email", "json", "unittest", "multiprocessing", "xml"]
    for label, package in enumerate(packages):
        for path in sorted(glob.glob(os.path.join(root, package, "**", "*.py"), recursive=True)):
            with open(path, encoding="utf-8", errors="ignore") as file:
                body = file.read()
            chunks = re.split(r"\n(?=    def |def |class )", body)
            texts += chunks
            labels += [label] * len(chunks)
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    return [texts[i] for i in order[:limit]], [labels[i] for i in order[:limit]]


class Texts(Dataset):
    def __init__(self, texts, labels):
        self.texts = texts
        self.labels = labels

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        grams = []
        for token in TOKEN.findall(self.texts[index].lower()):
            padded = f"<{token}>"
            grams += [padded[i : i + 3] for i in range(len(padded) - 2)]
        ids = [zlib.crc32(g.encode()) % (VOCAB - 1) + 1 for g in grams] or [1]
        return torch.tensor(ids[:256]), self.labels[index]


class BucketSampler(Sampler):
    def __init__(self, dataset, batch_size):
        self.dataset = dataset
        self.batch_size = batch_size

    def __len__(self):
        return len(self.dataset) // self.batch_size

    def __iter__(self):
        lengths = [len(self.dataset[i][0]) for i in range(len(self.dataset))]
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i], random.random()))
        size = self.batch_size
        batches = [order[i * size : (i + 1) * size] for i in range(len(self))]
        random.shuffle(batches)
        return iter(batches)


def collate(samples):
    ids, labels = zip(*samples)
    return pad_sequence(ids, batch_first=True), torch.tensor(labels)


class Tagger(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.EmbeddingBag(VOCAB, width, padding_idx=0, sparse=True)
        self.head = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 6))

    def forward(self, ids):
        return self.head(self.embed(ids))


def main():
    torch.manual_seed(0)
    random.seed(0)
    dataset = Texts(*read_texts(3200))
    loader = DataLoader(
        dataset, batch_sampler=BucketSampler(dataset, 96), collate_fn=collate, num_workers=2, persistent_workers=True
    )
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(9):
        for step, (ids, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
