"""Small next-token language model over Python sources, streamed by workers."""

import glob
import io
import os
import random
import re
import sysconfig
import tokenize
import zlib

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

VOCAB = 1000
BLOCK = 64
STRIDE = 384
PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^A-Za-z0-9]")


def lex(source):
    ids = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                for piece in PIECE.findall(token.string):
                    ids.append(zlib.crc32(piece.encode()) % VOCAB)
    except (tokenize.TokenError, SyntaxError):
        pass
    return ids


class SourceStream(IterableDataset):
    def __init__(self, files, seed=0):
        self.files = list(files)
        self.seed = seed

    def documents(self):
        order = list(self.files)
        random.Random(self.seed).shuffle(order)
        for path in order:
            with open(path, encoding="utf-8", errors="ignore") as f:
                yield lex(f.read())

    def __iter__(self):
        info = get_worker_info()
        rank, world = (info.id, info.num_workers) if info else (0, 1)
        for number, ids in enumerate(self.documents()):
            if number % world != rank:
                continue
            for start in range(0, len(ids) - BLOCK - 1, STRIDE):
                window = torch.tensor(ids[start : start + BLOCK + 1])
                yield window[:-1], window[1:]


class CodeLM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.context = nn.Conv1d(dim, 64, 5)
        self.out = nn.Linear(64, VOCAB)

    def forward(self, x):
        padded = nn.functional.pad(self.embed(x).transpose(1, 2), (4, 0))
        hidden = torch.relu(self.context(padded)).transpose(1, 2)
        return self.out(hidden[:, 7::8])


def main():
    torch.manual_seed(0)
    root = sysconfig.get_paths()["stdlib"]
    files = [f for f in sorted(glob.glob(os.path.join(root, "*.py"))) if os.path.getsize(f) < 60000][:150]
    model = CodeLM()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(6):
        loader = DataLoader(SourceStream(files, seed=epoch), batch_size=64, num_workers=2, drop_last=True)
        for x, y in loader:
            optimizer.zero_grad()
            logits = model(x)
            loss = criterion(logits.reshape(-1, VOCAB), y[:, 7::8].reshape(-1))
            loss.backward()
            optimizer.step()
            step += 1
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
