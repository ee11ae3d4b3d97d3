"""Train a P/S phase picker on windows cut from station recordings."""

import time

import numpy as np
import torch
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader, Dataset

FS = 100
WINDOW = 1024


def make_recordings(stations=10, seconds=160, seed=0):
    rng = np.random.default_rng(seed)
    n = seconds * FS
    recordings, picks = [], []
    for s in range(stations):
        trace = rng.normal(0, 0.4, (3, n)).cumsum(1) * 0.02 + rng.normal(0, 1, (3, n))
        for onset in rng.integers(2000, n - 3000, 40):
            gap = int(rng.integers(80, 400))
            tail = np.exp(-np.arange(600) / 150.0)
            trace[:, onset : onset + 600] += 3 * tail * rng.normal(0, 1, (3, 600))
            trace[:, onset + gap : onset + gap + 600] += 5 * tail * rng.normal(0, 1, (3, 600))
            picks.append((s, int(onset), int(onset + gap)))
        recordings.append(trace.astype(np.float32))
    return recordings, picks


def bandpass(trace, low=1.0, high=20.0):
    sos = signal.butter(4, [low, high], btype="bandpass", fs=FS, output="sos")
    trace = signal.detrend(trace, axis=-1)
    return signal.sosfiltfilt(sos, trace, axis=-1).astype(np.float32)


class PhaseWindows(Dataset):
    def __init__(self, recordings, picks, repeat=6):
        self.recordings = recordings
        self.picks = picks * repeat
        self.grid = np.arange(WINDOW)

    def __len__(self):
        return len(self.picks)

    def __getitem__(self, i):
        station, p, s = self.picks[i]
        start = p - int(torch.randint(50, 500, (1,)))
        trace = bandpass(self.recordings[station])
        window = trace[:, start : start + WINDOW]
        window = window / (np.abs(window).max() + 1e-6)
        target = np.stack([np.exp(-(((self.grid - (t - start)) / 20.0) ** 2)) for t in (p, s)])
        return torch.from_numpy(window), torch.from_numpy(target.astype(np.float32))


class Picker(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, width, 9, stride=2, padding=4),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width * 2, 9, stride=2, padding=4),
            nn.BatchNorm1d(width * 2),
            nn.ReLU(),
            nn.Conv1d(width * 2, width * 2, 9, padding=4),
            nn.ReLU(),
            nn.Upsample(scale_factor=4),
            nn.Conv1d(width * 2, 2, 9, padding=4),
        )

    def forward(self, x):
        return self.net(x)


def main():
    torch.manual_seed(0)
    recordings, picks = make_recordings()
    loader = DataLoader(PhaseWindows(recordings, picks), batch_size=16, shuffle=True, num_workers=2, drop_last=True)
    model = Picker()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(1):
        start = time.time()
        for step, (x, y) in enumerate(loader):
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch}: {step + 1} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
