"""Guess which part of the standard library a line of code or documentation comes from."""

import argparse
import pathlib
import random
import re
import sysconfig
from collections import Counter

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

PACKAGES = ["asyncio", "email", "json", "logging", "unittest", "xml", "http", "multiprocessing"]
TOKEN = re.compile(r"\w+|[^\w\s]")


def read_examples(limit):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    examples = []
    for label, package in enumerate(PACKAGES):
        lines = []
        for path in sorted((root / package).rglob("*.py")):
            if "test" in path.parts:
                continue
            lines += path.read_text(errors="ignore").splitlines()
        lines = [tokens for tokens in map(TOKEN.findall, lines) if len(tokens) >= 4]
        random.shuffle(lines)
        examples += [(tokens, label) for tokens in lines[:limit]]
    random.shuffle(examples)
    return examples


class LineDataset(Dataset):
    def __init__(self, examples, vocab, max_length):
        self.items = []
        for tokens, label in examples:
            ids = [vocab.get(t, 1) for t in tokens][:max_length]
            ids = ids + [0] * (max_length - len(ids))
            self.items.append((torch.tensor(ids), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Encoder(nn.Module):
    def __init__(self, vocab_size, n_classes, max_length, dim=64, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.pos = nn.Embedding(max_length, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, ids):
        pad = ids.eq(0)
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        h = self.encoder(h, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).to(h.dtype)
        return self.head((h * keep).sum(1) / keep.sum(1))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = sum((model(ids).argmax(-1) == y).sum().item() for ids, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--max-length", type=int, default=128)
    ap.add_argument("--per-class", type=int, default=160)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    random.seed(0)
    torch.manual_seed(0)
    examples = read_examples(args.per_class)
    counts = Counter(t for tokens, _ in examples for t in tokens)
    vocab = {t: i + 2 for i, (t, _) in enumerate(counts.most_common(4000))}
    cut = len(examples) // 10
    train_loader = DataLoader(
        LineDataset(examples[cut:], vocab, args.max_length), batch_size=args.batch_size, shuffle=True
    )
    dev_loader = DataLoader(LineDataset(examples[:cut], vocab, args.max_length), batch_size=64)

    model = Encoder(len(vocab) + 2, len(PACKAGES), args.max_length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    step = 0
    for epoch in range(args.epochs):
        for ids, y in train_loader:
            loss = criterion(model(ids), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch + 1} dev accuracy {accuracy(model, dev_loader):.3f}")


if __name__ == "__main__":
    main()
