"""Keyword classifier on filter-bank frames of utterances of unequal length."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_MELS = 40
N_KEYWORDS = 12


class Utterances(Dataset):
    def __init__(self, n=2560, seed=0):
        rng = np.random.default_rng(seed)
        prototypes = rng.normal(size=(N_KEYWORDS, 6, N_MELS)).astype(np.float32)
        self.items = []
        for _ in range(n):
            keyword = int(rng.integers(N_KEYWORDS))
            length = int(rng.integers(60, 160))
            phase = np.linspace(0, 5.99, length).astype(int)
            noise = rng.normal(0, 1.5, (length, N_MELS)).astype(np.float32)
            self.items.append((prototypes[keyword][phase] + noise, keyword))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        frames, keyword = self.items[i]
        return frames - frames.mean(0), keyword


def collate(batch):
    batch = sorted(batch, key=lambda item: -len(item[0]))
    longest = len(batch[0][0])
    features = torch.zeros(len(batch), longest, N_MELS)
    mask = torch.zeros(len(batch), longest)
    for i, (frames, _) in enumerate(batch):
        for t, frame in enumerate(frames):
            features[i, t] = torch.from_numpy(frame)
            mask[i, t] = 1.0
    keywords = torch.tensor([keyword for _, keyword in batch])
    return features, mask, keywords


class KeywordNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.conv1 = nn.Conv1d(N_MELS, width, 5, padding=2, stride=2)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2, stride=2)
        self.out = nn.Linear(width, N_KEYWORDS)

    def forward(self, features, mask):
        x = F.relu(self.conv1(features.transpose(1, 2)))
        x = F.relu(self.conv2(x))
        m = F.interpolate(mask[:, None], size=x.shape[-1])
        return self.out((x * m).sum(-1) / m.sum(-1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Utterances(), batch_size=64, shuffle=True, num_workers=2, collate_fn=collate, persistent_workers=True
    )
    model = KeywordNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(7):
        hits = seen = 0
        for step, (features, mask, keywords) in enumerate(loader):
            logits = model(features, mask)
            loss = F.cross_entropy(logits, keywords)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.argmax(1) == keywords).sum().item()
            seen += len(keywords)
            if step % 19 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch} accuracy {hits / seen:.3f}", flush=True)


if __name__ == "__main__":
    main()
