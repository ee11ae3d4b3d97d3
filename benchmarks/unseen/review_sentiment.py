import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

MAX_LEN, PAD, VOCAB = 256, 0, 4000


class Tokenizer:
    def __init__(self, max_len=MAX_LEN):
        self.max_len = max_len

    def encode(self, words):
        ids = words[: self.max_len]
        return ids + [PAD] * (self.max_len - len(ids))


class Reviews(Dataset):
    def __init__(self, n=640):
        rng = random.Random(0)
        tokenizer = Tokenizer()
        self.ids, self.labels = [], []
        for _ in range(n):
            label = rng.randint(0, 1)
            words = [rng.randrange(1, VOCAB // 2) * 2 - label for _ in range(rng.randint(12, 48))]
            self.ids.append(torch.tensor(tokenizer.encode(words)))
            self.labels.append(label)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.labels[i]


class SentimentTransformer(nn.Module):
    def __init__(self, dim=64, heads=4, layers=1):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.pos = nn.Embedding(MAX_LEN, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.cls = nn.Linear(dim, 2)

    def forward(self, ids):
        pad = ids == PAD
        h = self.emb(ids) + self.pos(torch.arange(ids.size(1)))
        h = self.encoder(h, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return self.cls((h * keep).sum(1) / keep.sum(1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(Reviews(), batch_size=8, shuffle=True)
    model = SentimentTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    criterion = nn.CrossEntropyLoss()
    for step, (ids, labels) in enumerate(loader):
        loss = criterion(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
