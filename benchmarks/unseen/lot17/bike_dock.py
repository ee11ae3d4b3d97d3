"""Forecast the bikes at every dock for the next six hours from the last day (sequence to vector GRU)."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


@dataclass(frozen=True)
class Setup:
    docks: int = 32
    history: int = 48
    horizon: int = 12
    hidden: int = 96
    batch: int = 64
    epochs: int = 7
    days: int = 140


def city(setup, seed=13):
    rng = np.random.default_rng(seed)
    t = np.arange(setup.days * 48)
    hour, weekend = (t % 48) / 2, ((t // 48) % 7 >= 5).astype(float)
    role = rng.uniform(-1, 1, setup.docks)
    tide = np.exp(-(((hour - 8.5) / 1.5) ** 2)) - np.exp(-(((hour - 17.5) / 2) ** 2))
    level = 10 + 7 * role * (np.cumsum(tide) % 5)[:, None] * (1 - 0.7 * weekend[:, None]) / 5
    noise = np.zeros((len(t), setup.docks))
    for i in range(1, len(t)):
        noise[i] = 0.9 * noise[i - 1] + rng.normal(0, 0.5, setup.docks)
    bikes = level + noise
    bikes = (bikes - bikes.mean(0)) / bikes.std(0)
    clock = np.stack([np.sin(2 * np.pi * hour / 24), np.cos(2 * np.pi * hour / 24), weekend], axis=1)
    return torch.tensor(np.concatenate([bikes, clock], axis=1), dtype=torch.float32)


class Windows(Dataset):
    """Takes a list of starts and gives the whole batch at once."""

    def __init__(self, table, setup):
        self.docks, self.history = setup.docks, setup.history
        self.views = table.unfold(0, setup.history + setup.horizon, 1).transpose(1, 2)

    def __len__(self):
        return len(self.views)

    def __getitem__(self, starts):
        w = self.views[torch.as_tensor(starts)]
        return w[:, : self.history], w[:, self.history :, : self.docks]


class Forecaster(nn.Module):
    def __init__(self, setup):
        super().__init__()
        self.setup = setup
        self.rnn = nn.GRU(setup.docks + 3, setup.hidden, batch_first=True)
        self.out = nn.Linear(setup.hidden, setup.horizon * setup.docks)

    def forward(self, past):
        _, h = self.rnn(past)
        ahead = self.out(h[-1]).view(-1, self.setup.horizon, self.setup.docks)
        return past[:, -1:, : self.setup.docks] + ahead


def loader_for(table, setup):
    data = Windows(table, setup)
    sampler = BatchSampler(RandomSampler(data), setup.batch, drop_last=True)
    return DataLoader(data, sampler=sampler, batch_size=None)


def main():
    setup = Setup()
    torch.manual_seed(1)
    table = city(setup)
    cut = int(0.9 * len(table))
    train = loader_for(table[:cut], setup)
    held = Windows(table[cut:], setup)
    model = Forecaster(setup)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    steps, t0 = 0, time.perf_counter()
    for epoch in range(setup.epochs):
        model.train()
        total = torch.zeros(())
        for past, future in train:
            loss = nn.functional.l1_loss(model(past), future)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            total += loss.detach()
            steps += 1
        model.eval()
        with torch.inference_mode():
            past, future = held[list(range(0, len(held), 4))]
            mae = nn.functional.l1_loss(model(past), future).item()
        print(f"epoch {epoch}: train {total.item() / len(train):.4f}, held out {mae:.4f}")
    took = time.perf_counter() - t0
    print(f"{steps} steps, {took:.1f} s, {1e3 * took / steps:.2f} ms a step")


if __name__ == "__main__":
    main()
