"""Estimate the remaining life of pumps from windows of vibration readings."""

import os

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
WINDOWS = 22_000 if CUDA else 400
LENGTH = 128 if CUDA else 24
CHANNELS = 6
HIDDEN = 256 if CUDA else 32
BATCH = 128 if CUDA else 16
EPOCHS = 4
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


def load_windows():
    generator = torch.Generator(device=device).manual_seed(7)
    time = torch.linspace(0, 20, LENGTH, device=device).view(1, LENGTH, 1)
    speed = torch.rand(WINDOWS, 1, CHANNELS, device=device, generator=generator) * 3 + 1
    wear = torch.rand(WINDOWS, 1, 1, device=device, generator=generator)
    noise = torch.randn(WINDOWS, LENGTH, CHANNELS, device=device, generator=generator)
    return torch.sin(time * speed) + wear * noise, 1 - wear.view(-1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = HIDDEN
        self.first = nn.LSTMCell(CHANNELS, HIDDEN)
        self.second = nn.LSTMCell(HIDDEN, HIDDEN)

    def forward(self, x):
        h1 = c1 = h2 = c2 = x.new_zeros(x.shape[0], self.hidden)
        outputs = []
        for t in range(x.shape[1]):
            h1, c1 = self.first(x[:, t], (h1, c1))
            h2, c2 = self.second(h1, (h2, c2))
            outputs.append(h2)
        return torch.stack(outputs, dim=1)


class LifeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.score = nn.Linear(HIDDEN, 1)
        self.head = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, x):
        states = self.encoder(x)
        weights = self.score(states).softmax(dim=1)
        return self.head((weights * states).sum(1)).squeeze(-1)


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    readings, life = load_windows()
    model = LifeModel().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    total = torch.zeros((), device=device)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(WINDOWS, device=device)
        for begin in range(0, WINDOWS - BATCH + 1, BATCH):
            rows = order[begin : begin + BATCH]
            loss = F.mse_loss(model(readings[rows]), life[rows])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} mse {total.item() / 50:.5f}", flush=True)
                total.zero_()
            if step == LIMIT_STEPS:
                return


if __name__ == "__main__":
    main()
