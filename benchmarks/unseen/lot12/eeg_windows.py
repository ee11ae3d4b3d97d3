"""Sleep-stage classifier on windows cut from long EEG recordings."""

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHANNELS = 8
WINDOW = 256
PER_RECORDING = 300


def prepare(folder, recordings):
    """Cuts each recording into windows and writes one file for each of them."""
    generator = torch.Generator().manual_seed(0)
    paths, labels = [], []
    for r in range(recordings):
        recording = torch.randn(CHANNELS, WINDOW * PER_RECORDING, generator=generator)
        recording = recording / recording.std(dim=1, keepdim=True)
        for w in range(0, PER_RECORDING, 4):
            label = (r + w // 4) % 5
            window = recording[:, w * WINDOW : (w + 1) * WINDOW]
            window += 0.3 * label
            path = os.path.join(folder, f"r{r:02d}_w{w:03d}.pt")
            torch.save(window, path)
            paths.append(path)
            labels.append(label)
    return paths, labels


class Windows(Dataset):
    def __init__(self, paths, labels):
        self.paths = paths
        self.labels = labels

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return torch.load(self.paths[index]), self.labels[index]


class StageNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(CHANNELS, width, 7, padding=3),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        return self.head(self.body(x).squeeze(-1))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        paths, labels = prepare(folder, recordings=4)
        loader = DataLoader(Windows(paths, labels), batch_size=20, shuffle=True)
        model = StageNet()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(10):
            total = 0.0
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
