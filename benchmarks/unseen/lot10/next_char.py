"""Character model on the standard library's sources."""

import sysconfig
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def read_corpus(n_files=60):
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[:n_files]
    text = "\n".join(f.read_text(encoding="utf-8", errors="ignore") for f in files)
    raw = np.frombuffer(text.encode("ascii", errors="ignore"), dtype=np.uint8)
    return torch.from_numpy(raw.copy())


class Chunks(Dataset):
    def __init__(self, corpus, length, n):
        self.corpus = corpus
        self.length = length
        self.starts = torch.randint(len(corpus) - length - 1, (n,)).tolist()

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        start = self.starts[i]
        return self.corpus[start : start + self.length + 1].long()


class CharModel(nn.Module):
    def __init__(self, dim=48, hidden=160):
        super().__init__()
        self.embed = nn.Embedding(128, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 128)

    def forward(self, ids):
        hidden, _ = self.rnn(self.embed(ids))
        return self.out(hidden)


def main():
    torch.manual_seed(0)
    corpus = read_corpus()
    data = Chunks(corpus, length=64, n=32 * 125)
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    model = CharModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        total = 0.0
        for step, ids in enumerate(loader):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
            if step % 25 == 24:
                print(f"epoch {epoch} step {step + 1} loss {total / 25:.4f}", flush=True)
                total = 0.0


if __name__ == "__main__":
    main()
