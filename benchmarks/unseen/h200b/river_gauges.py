"""Forecast the level of a river a day ahead from a week of gauge readings."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
HOURS = 168 if GPU else 24
AHEAD = 24
GAUGES = 24
STATIONS = 64 if GPU else 4
HISTORY = 8760 if GPU else 500
BATCH = 128 if GPU else 8
HIDDEN = 256 if GPU else 32
STEPS = 800 if GPU else 6


def make_history():
    gen = torch.Generator().manual_seed(3)
    t = torch.arange(HISTORY, dtype=torch.float32)
    phase = torch.rand(STATIONS, 1, GAUGES, generator=gen) * 6.28
    wave = torch.sin(t[None, :, None] / 24 * 6.28 + phase)
    noise = torch.randn(STATIONS, HISTORY, GAUGES, generator=gen)
    return (wave + 0.3 * noise).to(device)


def sample_windows(history):
    station = torch.randint(0, STATIONS, (BATCH, 1), device=device)
    start = torch.randint(0, HISTORY - HOURS - AHEAD, (BATCH, 1), device=device)
    offsets = torch.arange(HOURS + AHEAD, device=device)
    window = history[station, start + offsets]
    return window[:, :HOURS], window[:, HOURS:, 0]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(GAUGES, HIDDEN)
        self.rnn = nn.LSTMCell(HIDDEN, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, AHEAD)

    def forward(self, x):
        x = torch.tanh(self.embed(x))
        h = x.new_zeros(x.size(0), HIDDEN)
        c = x.new_zeros(x.size(0), HIDDEN)
        states = []
        for reading in x.unbind(dim=1):
            h, c = self.rnn(reading, (h, c))
            states.append(h)
        states = torch.stack(states, dim=1)
        pooled = states[:, -1] + states.mean(dim=1)
        return self.head(self.norm(pooled))


def main():
    torch.manual_seed(0)
    history = make_history()
    model = Forecaster().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    running = torch.zeros((), device=device)
    for step in range(STEPS):
        readings, future = sample_windows(history)
        forecast = model(readings)
        loss = F.mse_loss(forecast, future)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.detach()
        if (step + 1) % 50 == 0 or step + 1 == STEPS:
            print(f"step {step + 1} mean loss {running.item() / (step + 1):.4f}", flush=True)


if __name__ == "__main__":
    main()
