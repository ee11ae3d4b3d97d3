import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

VOCAB, TAGS, PAD = 5000, 17, 0


class TreebankDataset(Dataset):
    def __init__(self, n=2600):
        rng = random.Random(3)
        self.sents = []
        for _ in range(n):
            length = rng.randint(20, 60)
            words = [rng.randrange(1, VOCAB) for _ in range(length)]
            self.sents.append((words, [w % TAGS for w in words]))

    def __len__(self):
        return len(self.sents)

    def __getitem__(self, i):
        return self.sents[i]


def collate_batch(batch):
    longest = max(len(words) for words, _ in batch)
    tokens = torch.full((len(batch), longest), PAD, dtype=torch.long)
    tags = torch.full((len(batch), longest), -100, dtype=torch.long)
    mask = torch.zeros(len(batch), longest)
    for i, (words, labels) in enumerate(batch):
        for j in range(len(words)):
            tokens[i, j] = words[j]
            tags[i, j] = labels[j]
            mask[i, j] = 1.0
    return tokens, tags, mask


class Tagger(nn.Module):
    def __init__(self, dim=96, hidden=96):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.conv = nn.Conv1d(dim, hidden, 5, padding=2)
        self.conv2 = nn.Conv1d(hidden, hidden, 5, padding=2)
        self.out = nn.Linear(hidden, TAGS)

    def forward(self, tokens, mask):
        h = self.emb(tokens).transpose(1, 2)
        h = torch.relu(self.conv2(torch.relu(self.conv(h)))).transpose(1, 2)
        return self.out(h * mask.unsqueeze(-1))


class Trainer:
    def __init__(self):
        torch.manual_seed(7)
        self.loader = DataLoader(TreebankDataset(), batch_size=32, shuffle=True, collate_fn=collate_batch)
        self.model = Tagger()
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loss_fn = nn.CrossEntropyLoss(ignore_index=-100)

    def fit(self, steps=80):
        for step, (tokens, tags, mask) in enumerate(self.loader, 1):
            logits = self.model(tokens, mask)
            loss = self.loss_fn(logits.reshape(-1, TAGS), tags.reshape(-1))
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            if step % 20 == 0:
                print(f"[{step}/{steps}] loss={loss.item():.3f}")
            if step == steps:
                return


if __name__ == "__main__":
    Trainer().fit()
