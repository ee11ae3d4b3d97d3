"""Guess which standard library package a piece of source code comes from."""

import ast
import collections
import glob
import os
import re
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CONFIG = dict(
    packages=[
        "asyncio",
        "email",
        "json",
        "unittest",
        "http",
        "xml",
        "logging",
        "distutils",
        "importlib",
        "concurrent",
        "multiprocessing",
        "urllib",
        "ctypes",
        "tkinter",
    ],
    vocab=2500,
    max_len=96,
    dim=64,
    heads=4,
    layers=2,
    batch=24,
    epochs=4,
    lr=1e-3,
)


def collect_functions(packages, per_package=60):
    root = os.path.dirname(os.__file__)
    texts, labels = [], []
    for label, pkg in enumerate(packages):
        found = []
        for path in sorted(glob.glob(os.path.join(root, pkg, "**", "*.py"), recursive=True)):
            with open(path, encoding="utf-8", errors="ignore") as f:
                src = f.read()
            for node in ast.walk(ast.parse(src)):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    text = "\n".join(src.splitlines()[node.lineno - 1 : node.end_lineno])
                    if len(text) > 1000:
                        found.append(text)
            if len(found) > per_package:
                break
        texts += found[:per_package]
        labels += [label] * len(found[:per_package])
    return texts, labels


class WordPiece:
    def __init__(self, texts, size):
        counts = collections.Counter()
        for text in texts:
            for word in re.findall(r"[A-Za-z_]+|\d|[^\w\s]", text):
                for n in range(1, min(len(word), 8) + 1):
                    counts[word[:n]] += 1
        chars = sorted({c for text in texts for c in text})
        pieces = chars + [p for p, _ in counts.most_common(size) if len(p) > 1]
        self.index = {p: i + 2 for i, p in enumerate(pieces)}
        self.size = len(self.index) + 2

    def encode(self, text):
        out = []
        for word in re.findall(r"[A-Za-z_]+|\d|[^\w\s]", text):
            start = 0
            while start < len(word):
                end = len(word)
                while end > start + 1 and word[start:end] not in self.index:
                    end -= 1
                out.append(self.index.get(word[start:end], 1))
                start = end
        return out


class CodeDataset(Dataset):
    def __init__(self, texts, labels, tokenizer, max_len):
        self.texts, self.labels = texts, labels
        self.tokenizer, self.max_len = tokenizer, max_len

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        ids = self.tokenizer.encode(self.texts[i])[: self.max_len]
        ids += [0] * (self.max_len - len(ids))
        return torch.tensor(ids), self.labels[i]


class Classifier(nn.Module):
    def __init__(self, vocab, cfg):
        super().__init__()
        self.tok = nn.Embedding(vocab, cfg["dim"], padding_idx=0)
        self.pos = nn.Parameter(0.02 * torch.randn(cfg["max_len"], cfg["dim"]))
        layer = nn.TransformerEncoderLayer(cfg["dim"], cfg["heads"], 2 * cfg["dim"], dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, cfg["layers"], enable_nested_tensor=False)
        self.out = nn.Linear(cfg["dim"], len(cfg["packages"]))

    def forward(self, ids):
        return self.out(self.enc(self.tok(ids) + self.pos).mean(1))


def train(cfg):
    torch.manual_seed(0)
    texts, labels = collect_functions(cfg["packages"])
    tokenizer = WordPiece(texts, cfg["vocab"])
    loader = DataLoader(
        CodeDataset(texts, labels, tokenizer, cfg["max_len"]), batch_size=cfg["batch"], shuffle=True, drop_last=True
    )
    model = Classifier(tokenizer.size, cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], fused=True)
    print(f"{len(texts)} functions, {tokenizer.size} pieces")
    step, t0 = 0, time.perf_counter()
    for epoch in range(cfg["epochs"]):
        for ids, label in loader:
            loss = F.cross_entropy(model(ids), label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 40 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
    print(f"{1e3 * (time.perf_counter() - t0) / step:.1f} ms/step, {step} steps")


if __name__ == "__main__":
    train(CONFIG)
