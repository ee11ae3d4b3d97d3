"""Bearing diagnosis from vibration: windows of a simulated accelerometer, four conditions, a 1-d convolutional net."""

import argparse
import time

import numpy as np
import torch
from scipy.signal import lfilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

CONDITIONS = {"healthy": 0.0, "inner": 5.4, "outer": 3.6, "ball": 4.7}
RATE = 12_000


def recording(rng, order, seconds):
    n = int(seconds * RATE)
    shaft = rng.uniform(28, 31)
    t = np.arange(n) / RATE
    signal = 0.4 * np.sin(2 * np.pi * shaft * t) + 0.2 * np.sin(4 * np.pi * shaft * t + 1) + rng.normal(0, 0.5, n)
    if order:
        knocks = np.zeros(n)
        at = np.cumsum(RATE / (shaft * order) * rng.normal(1, 0.01, n // 50)).astype(int)
        knocks[at[at < n]] = rng.uniform(2, 5)
        pole = 0.93 * np.exp(1j * 2 * np.pi * 3000 / RATE)
        signal += lfilter([1.0], [1.0, -2 * pole.real, abs(pole) ** 2], knocks)
    return signal


class Windows(Dataset):
    def __init__(self, per_condition=6, seconds=4.0, length=512, hop=200, seed=0):
        rng = np.random.default_rng(seed)
        windows, labels = [], []
        for label, order in enumerate(CONDITIONS.values()):
            for _ in range(per_condition):
                signal = recording(rng, order, seconds)
                cut = np.lib.stride_tricks.sliding_window_view(signal, length)[::hop]
                windows.append(cut)
                labels += [label] * len(cut)
        self.windows = np.concatenate(windows)
        self.windows = (self.windows - self.windows.mean()) / self.windows.std()
        self.labels = np.array(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.windows[i], self.labels[i]


class VibrationNet(nn.Module):
    def __init__(self, classes=len(CONDITIONS), width=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, width, 31, stride=4, padding=15), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 9, stride=2, padding=4), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.Conv1d(2 * width, 3 * width, 9, stride=2, padding=4), nn.BatchNorm1d(3 * width), nn.ReLU(),
            nn.AdaptiveAvgPool1d(4), nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(12 * width, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, classes))

    def forward(self, x):
        return self.head(self.features(x.unsqueeze(1)))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=48)
    args = parser.parse_args()
    torch.manual_seed(0)
    train_loader = DataLoader(Windows(), batch_size=args.batch, shuffle=True, drop_last=True)
    test_loader = DataLoader(Windows(per_condition=1, seed=99), batch_size=128)
    model = VibrationNet().double()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    running, step, start = 0.0, 0, time.time()
    while step < args.steps:
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            running = loss.detach() if step == 0 else 0.95 * running + 0.05 * loss.detach()
            step += 1
            if step % 100 == 0:
                print(f"step {step}: running loss {running.item():.4f}")
            if step == args.steps:
                break
    took = time.time() - start
    print(f"accuracy on a new machine {evaluate(model, test_loader):.3f}; {took / step * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
