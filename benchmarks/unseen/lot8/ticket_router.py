"""Route support tickets (here: snippets of source) to the owning team."""

import glob
import os
import sqlite3
import sysconfig
import tempfile
import zlib

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

BUCKETS = 20000
TEAMS = ["asyncio", "email", "json", "unittest", "http", "multiprocessing", "logging", "xml"]


def build_database(path, wanted=14000):
    root = sysconfig.get_paths()["stdlib"]
    rows = []
    for team, name in enumerate(TEAMS):
        for file in sorted(glob.glob(os.path.join(root, name, "**", "*.py"), recursive=True)):
            with open(file, encoding="utf-8", errors="ignore") as f:
                text = f.read()
            rows += [(text[i : i + 500], team) for i in range(0, len(text), 250)]
    while len(rows) < wanted:
        rows += rows[: wanted - len(rows)]
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE tickets (id INTEGER PRIMARY KEY, body TEXT, team INTEGER)")
    db.executemany("INSERT INTO tickets (body, team) VALUES (?, ?)", rows[:wanted])
    db.commit()
    db.close()


class TicketDataset(Dataset):
    def __init__(self, path, max_tokens=64):
        self.path = path
        self.max_tokens = max_tokens
        self.db = None
        with sqlite3.connect(path) as db:
            self.size = db.execute("SELECT COUNT(*) FROM tickets").fetchone()[0]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if self.db is None:
            self.db = sqlite3.connect(self.path)
        row = self.db.execute("SELECT body, team FROM tickets ORDER BY id LIMIT 1 OFFSET ?", (index,)).fetchone()
        words = row[0].split()[: self.max_tokens]
        ids = torch.zeros(self.max_tokens, dtype=torch.long)
        for i, word in enumerate(words):
            ids[i] = 1 + zlib.crc32(word.encode()) % (BUCKETS - 1)
        return ids, row[1]


class Router(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(BUCKETS, dim, padding_idx=0, sparse=True)
        self.conv = nn.Conv1d(dim, 96, 5, padding=2)
        self.out = nn.Linear(96, len(TEAMS))

    def forward(self, ids):
        x = torch.relu(self.conv(self.embed(ids).transpose(1, 2)))
        return self.out(x.amax(dim=2))


def main():
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tickets.db")
        build_database(path)
        loader = DataLoader(TicketDataset(path), batch_size=48, shuffle=True, num_workers=2)
        model = Router()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for step, (ids, team) in enumerate(loader, 1):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(ids), team)
            loss.backward()
            optimizer.step()
            if step % 40 == 0:
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
