"""Forecast water levels with a recurrent net whose transition stays orthogonal."""

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils import parametrizations

HORIZON = 1
WINDOW = 32


def simulate(stations=64, days=1500, seed=2):
    rng = np.random.default_rng(seed)
    t = np.arange(days)
    phase = rng.uniform(0, 6, (stations, 1))
    season = np.sin(2 * np.pi * t / 365 + phase)
    weekly = 0.2 * np.sin(2 * np.pi * t / 7 + 2 * phase)
    drift = np.cumsum(rng.normal(0, 0.03, (stations, days)), axis=1)
    return torch.tensor(season + weekly + drift, dtype=torch.float32)


class LevelForecaster(nn.Module):
    def __init__(self, inputs=2, hidden=80):
        super().__init__()
        self.hidden = hidden
        self.read = nn.Linear(inputs, hidden)
        self.transition = parametrizations.orthogonal(
            nn.Linear(hidden, hidden, bias=False), orthogonal_map="matrix_exp"
        )
        self.gain = nn.Parameter(torch.zeros(hidden))
        self.out = nn.Linear(hidden, HORIZON)

    def forward(self, x):
        drive = self.read(x)
        state = x.new_zeros(x.shape[0], self.hidden)
        for t in range(x.shape[1]):
            mixed = self.transition(state) + drive[:, t]
            state = torch.sign(mixed) * torch.relu(mixed.abs() + self.gain)
        return self.out(state).squeeze(-1)


def sample_batch(levels, size, generator):
    stations, days = levels.shape
    rows = torch.randint(0, stations, (size,), generator=generator)
    starts = torch.randint(0, days - WINDOW - HORIZON, (size,), generator=generator)
    offsets = torch.arange(WINDOW + HORIZON)
    series = levels[rows[:, None], starts[:, None] + offsets]
    base = series[:, :1]
    series = series - base
    x = torch.stack([series[:, :-1], series[:, :-1].diff(dim=1, prepend=series[:, :1])], dim=2)
    return x, series[:, -1]


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    levels = simulate()
    model = LevelForecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.SmoothL1Loss()
    for epoch in range(4):
        for step in range(60):
            x, y = sample_batch(levels, 128, generator)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
