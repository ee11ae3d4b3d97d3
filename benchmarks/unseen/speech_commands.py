import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

N_CLASSES = 12
PER_SHARD = 32


def prepare(root, n_shards=40):
    rng = np.random.default_rng(0)
    for s in range(n_shards):
        labels = rng.integers(0, N_CLASSES, PER_SHARD)
        feats = rng.normal(size=(PER_SHARD, 40, 64)).astype(np.float32)
        feats += labels[:, None, None] * 0.1
        np.savez_compressed(os.path.join(root, f"shard_{s:03d}.npz"), feats=feats, labels=labels)


class SpeechCommands(Dataset):
    def __init__(self, root):
        self.files = sorted(os.path.join(root, f) for f in os.listdir(root) if f.endswith(".npz"))

    def __len__(self):
        return len(self.files) * PER_SHARD

    def __getitem__(self, idx):
        shard, row = divmod(idx, PER_SHARD)
        data = np.load(self.files[shard])
        mel = data["feats"][row]
        label = int(data["labels"][row])
        return torch.from_numpy(mel).unsqueeze(0), label


class KWSNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width * 2, 3, padding=1),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.fc = nn.Linear(width * 2, N_CLASSES)

    def forward(self, x):
        return self.fc(self.features(x).mean(dim=(2, 3)))


def train(root, max_steps=80):
    torch.manual_seed(0)
    loader = DataLoader(SpeechCommands(root), batch_size=16, shuffle=True)
    model = KWSNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    step = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step >= max_steps:
            break


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        prepare(root)
        train(root)
