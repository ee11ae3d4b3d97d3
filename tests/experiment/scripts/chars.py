"""A character model of a text that the script makes itself; Adam, dropout, batches cut by hand (no DataLoader)."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

TEXT = Path(torch.__file__).read_text(encoding="utf-8")[:60000]
LENGTH = 24


class Model(nn.Module):
    def __init__(self, size, width=48, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, size)

    def forward(self, tokens):
        return self.head(self.drop(self.rnn(self.embedding(tokens))[0]))


letters = sorted(set(TEXT))
data = torch.tensor([letters.index(letter) for letter in TEXT])
model = Model(len(letters), dropout=float(sys.argv[1]) if len(sys.argv) > 1 else 0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(5000):
    at = torch.randint(len(data) - LENGTH - 1, (16,)).tolist()
    tokens = torch.stack([data[i : i + LENGTH] for i in at])
    targets = torch.stack([data[i + 1 : i + LENGTH + 1] for i in at])
    logits = model(tokens)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
