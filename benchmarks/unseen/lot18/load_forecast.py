"""Sequence model for hourly electricity load: observe two days, predict the next hours."""

import math
import time

import numpy as np
import torch
from torch import nn

WINDOW = 48
HORIZON = 12
BATCH = 32
STEPS = 400


def make_series(n_hours=24 * 365 * 2, n_sites=12, seed=3):
    rng = np.random.default_rng(seed)
    t = np.arange(n_hours)
    rows = []
    for _ in range(n_sites):
        phase = rng.uniform(0, 2 * math.pi)
        daily = np.sin(2 * math.pi * t / 24 + phase)
        weekly = 0.5 * np.sin(2 * math.pi * t / 168 + rng.uniform(0, 6))
        drift = np.cumsum(rng.normal(0, 0.01, n_hours))
        rows.append(daily + weekly + drift + rng.normal(0, 0.15, n_hours))
    series = np.stack(rows).astype(np.float32)
    series = (series - series.mean(1, keepdims=True)) / series.std(1, keepdims=True)
    hour = np.stack(
        [
            np.sin(2 * math.pi * t / 24),
            np.cos(2 * math.pi * t / 24),
            np.sin(2 * math.pi * t / 168),
            np.cos(2 * math.pi * t / 168),
        ],
        -1,
    )
    return torch.from_numpy(series), torch.from_numpy(hour.astype(np.float32))


class Forecaster(nn.Module):
    """LSTM over (load, calendar) that feeds its own predictions back in."""

    def __init__(self, n_calendar=4, hidden=48):
        super().__init__()
        self.rnn = nn.LSTM(1 + n_calendar, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, load, cal_past, cal_future):
        seq = torch.cat([load.unsqueeze(-1), cal_past], -1)
        preds = []
        for h in range(cal_future.size(1)):
            out, _ = self.rnn(seq)
            y = self.head(out[:, -1])
            preds.append(y)
            nxt = torch.cat([y, cal_future[:, h]], -1).unsqueeze(1)
            seq = torch.cat([seq, nxt], 1)
        return torch.cat(preds, 1)


def batches(series, cal, rng, last):
    n_sites = series.size(0)
    span = torch.arange(WINDOW + HORIZON)
    while True:
        site = torch.randint(n_sites, (BATCH,), generator=rng)
        start = torch.randint(last, (BATCH,), generator=rng)
        pos = start[:, None] + span
        values = series[site[:, None], pos]
        calendar = cal[pos]
        yield (values[:, :WINDOW], calendar[:, :WINDOW], calendar[:, WINDOW:], values[:, WINDOW:])


def main():
    torch.manual_seed(0)
    series, cal = make_series()
    rng = torch.Generator().manual_seed(1)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    stream = batches(series, cal, rng, series.size(1) - WINDOW - HORIZON)
    running = 0.0
    began = time.perf_counter()
    for step in range(1, STEPS + 1):
        load, cal_past, cal_future, target = next(stream)
        loss = nn.functional.smooth_l1_loss(model(load, cal_past, cal_future), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running += loss.item()
        if step % 60 == 0:
            print(f"step {step:4d}  huber {running / 60:.4f}", flush=True)
            running = 0.0
    took = time.perf_counter() - began
    print(f"{STEPS} steps, {1000 * took / STEPS:.2f} ms/step")


if __name__ == "__main__":
    main()
