"""Day-ahead electricity load forecasting with a small convolutional network."""

from datetime import datetime, timedelta

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 168
HORIZON = 24


def make_meter_log(hours=4400, seed=0):
    rng = np.random.default_rng(seed)
    start = datetime(2022, 1, 1)
    stamps, values = [], []
    for h in range(hours):
        now = start + timedelta(hours=h)
        load = 50 + 12 * np.sin(2 * np.pi * (now.hour - 7) / 24) - 6 * (now.weekday() > 4)
        stamps.append(now.strftime("%Y-%m-%d %H:%M:%S"))
        values.append(load + rng.normal(0, 1.5))
    return stamps, np.asarray(values, dtype=np.float32)


def calendar_features(stamps):
    rows = np.empty((len(stamps), 5), dtype=np.float32)
    for i, stamp in enumerate(stamps):
        when = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S")
        day = 2 * np.pi * when.hour / 24
        week = 2 * np.pi * when.weekday() / 7
        rows[i] = (np.sin(day), np.cos(day), np.sin(week), np.cos(week), float(when.weekday() > 4))
    return rows


class LoadWindows(Dataset):
    def __init__(self, stamps, values):
        self.stamps = stamps
        self.values = (values - values.mean()) / values.std()

    def __len__(self):
        return len(self.values) - WINDOW - HORIZON

    def __getitem__(self, i):
        calendar = calendar_features(self.stamps[i : i + WINDOW])
        past = self.values[i : i + WINDOW, None]
        target = self.values[i + WINDOW : i + WINDOW + HORIZON]
        x = np.concatenate([past, calendar], axis=1)
        return torch.from_numpy(x), torch.from_numpy(target)


class LoadForecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv1d(6, hidden, 12, stride=6),
            nn.ReLU(),
            nn.Conv1d(hidden, hidden, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, HORIZON))

    def forward(self, x):
        return self.head(self.encode(x.transpose(1, 2)))


def main():
    torch.manual_seed(1)
    stamps, values = make_meter_log()
    loader = DataLoader(LoadWindows(stamps, values), batch_size=32, shuffle=True, num_workers=2, drop_last=True)
    model = LoadForecaster()
    model(torch.zeros(1, WINDOW, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.SmoothL1Loss()

    for epoch in range(2):
        running = 0.0
        for step, (x, y) in enumerate(loader, 1):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {running / step:.4f}", flush=True)


if __name__ == "__main__":
    main()
