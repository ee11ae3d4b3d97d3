import os
import random
import sqlite3
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

USERS, MOVIES, ROWS = 2000, 1500, 12000


def create_db(path):
    random.seed(1)
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE ratings (user INTEGER, movie INTEGER, score REAL)")
    rows = [(random.randrange(USERS), random.randrange(MOVIES), random.randint(1, 5)) for _ in range(ROWS)]
    con.executemany("INSERT INTO ratings VALUES (?, ?, ?)", rows)
    con.commit()
    con.close()


class RatingsDataset(Dataset):
    def __init__(self, path):
        self.path = path
        con = sqlite3.connect(path)
        self.size = con.execute("SELECT COUNT(*) FROM ratings").fetchone()[0]
        con.close()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        con = sqlite3.connect(self.path)
        row = con.execute("SELECT user, movie, score FROM ratings LIMIT 1 OFFSET ?", (index,)).fetchone()
        con.close()
        return row[0], row[1], torch.tensor(row[2], dtype=torch.float32)


class NeuMF(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.movie = nn.Embedding(MOVIES, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, u, m):
        u, m = self.user(u), self.movie(m)
        return self.mlp(torch.cat([u, m], dim=-1)).squeeze(-1) + (u * m).sum(-1)


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as tmp:
        db = os.path.join(tmp, "ratings.db")
        create_db(db)
        loader = DataLoader(RatingsDataset(db), batch_size=128, shuffle=True, drop_last=True)
        model = NeuMF()
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        for i, (user, movie, score) in enumerate(loader):
            if i == 80:
                break
            loss = F.mse_loss(model(user, movie), score)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if i % 20 == 0:
                print("iter", i, "mse", round(loss.item(), 4))


if __name__ == "__main__":
    main()
