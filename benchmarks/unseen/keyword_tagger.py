"""Spot keywords in short clips of synthetic audio."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 8000
MELS = 64


class Clips(Dataset):
    def __init__(self, size, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 6, size)
        self.lengths = rng.integers(120, 260, size)
        base = rng.normal(size=(6, MELS)).astype(np.float32)
        noise = rng.normal(size=(4096, MELS)).astype(np.float32)
        self.base, self.noise = base, noise
        self.starts = rng.integers(0, 3800, size)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        start, length = self.starts[index], self.lengths[index]
        label = self.labels[index]
        frames = self.noise[start : start + length] + 0.3 * self.base[label]
        return frames, int(label)


def pad_clips(samples):
    longest = max(len(frames) for frames, _ in samples)
    silence = [0.0] * MELS
    padded, lengths, labels = [], [], []
    for frames, label in samples:
        rows = frames.tolist()
        lengths.append(len(rows))
        rows += [silence] * (longest - len(rows))
        padded.append(rows)
        labels.append(label)
    return torch.tensor(padded), torch.tensor(lengths), torch.tensor(labels)


class Tagger(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(MELS, width, 5, stride=2), nn.ReLU(), nn.Conv1d(width, width, 5, stride=2), nn.ReLU()
        )
        self.out = nn.Linear(width, 6)

    def forward(self, x, lengths):
        h = self.conv(x.transpose(1, 2))
        keep = torch.arange(h.shape[2])[None] < (lengths // 4)[:, None]
        h = h * keep[:, None]
        return self.out(h.sum(2) / keep.sum(1, keepdim=True))


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Clips(48 * 100, 0), batch_size=48, shuffle=True, num_workers=2, collate_fn=pad_clips, persistent_workers=True
    )
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        correct = seen = 0
        for step, (x, lengths, labels) in enumerate(loader):
            logits = model(x, lengths)
            loss = nn.functional.cross_entropy(logits, labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (logits.argmax(1) == labels).sum().item()
            seen += len(labels)
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} acc {correct / seen:.3f}")


if __name__ == "__main__":
    main()
