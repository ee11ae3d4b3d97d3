"""Sentiment of short reviews with a small transformer encoder."""

import argparse
import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD = 0
MAX_LEN = 256


class Reviews(Dataset):
    def __init__(self, n, vocab):
        rng = random.Random(5)
        self.rows = []
        for _ in range(n):
            length = min(MAX_LEN, max(4, int(rng.lognormvariate(3.0, 0.4))))
            tokens = torch.randint(1, vocab, (length,))
            self.rows.append((tokens, int(tokens.sum()) % 2))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = torch.full((len(rows), MAX_LEN), PAD, dtype=torch.long)
    for k, (tokens, _) in enumerate(rows):
        ids[k, : len(tokens)] = tokens
    labels = torch.tensor([label for _, label in rows])
    return ids, labels


class Classifier(nn.Module):
    def __init__(self, vocab, dim=64, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.pos = nn.Embedding(MAX_LEN, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        mask = ids.eq(PAD)
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        x = self.encoder(x, src_key_padding_mask=mask)
        keep = (~mask).unsqueeze(-1).float()
        return self.head((x * keep).sum(1) / keep.sum(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 80)))
    ap.add_argument("--batch-size", type=int, default=12)
    args = ap.parse_args()

    torch.manual_seed(0)
    data = Reviews(args.batch_size * args.steps, vocab=2000)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    model = Classifier(2000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    loss_fn = nn.CrossEntropyLoss()
    for step, (ids, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = loss_fn(model(ids), labels)
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"{step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
