"""Picks first breaks on seismic shot gathers: for each receiver, the time bin where the wave arrives."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
STEPS = int(os.environ.get("STEPS", 1100))
RECEIVERS, SAMPLES, BINS = (128, 4096, 128) if cuda else (16, 1024, 32)
SHOTS, BATCH = (768, 96) if cuda else (32, 8)


def survey(shots):
    """Ricker wavelets on hyperbolic moveout with noise; returns gathers and bins."""
    gathers, bins = [], []
    t = torch.arange(SAMPLES, device=device) / SAMPLES
    offset = torch.linspace(-1, 1, RECEIVERS, device=device)
    for _ in range(shots):
        t0, slope, apex = torch.rand(3, device=device)
        arrival = torch.sqrt((0.1 + 0.3 * t0) ** 2 + ((0.2 + 0.4 * slope) * (offset - apex)) ** 2)
        arg = (3.14 * 60 * (t[None, :] - arrival[:, None])) ** 2
        trace = (1 - 2 * arg) * torch.exp(-arg) + 0.3 * torch.randn(RECEIVERS, SAMPLES, device=device)
        gathers.append(trace.cpu())
        bins.append((arrival * BINS).long().clamp(max=BINS - 1).cpu())
    return torch.stack(gathers).unsqueeze(1), torch.stack(bins)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.relu(x + self.body(x), inplace=True)


class Picker(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, (3, 16), stride=(1, 8), padding=(1, 4), bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, width, (3, 8), stride=(1, 4), padding=(1, 2), bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            Residual(width),
            Residual(width),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, gather):
        return self.net(gather).squeeze(1)


class Trainer:
    def __init__(self):
        torch.manual_seed(4)
        torch.backends.cudnn.benchmark = True
        self.gathers, self.bins = survey(SHOTS)
        self.model = Picker().to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
        self.done = 0

    def batches(self):
        for first in torch.randperm(SHOTS // BATCH).tolist():
            rows = slice(first * BATCH, (first + 1) * BATCH)
            gather = self.gathers[rows].to(device, non_blocking=True)
            bins = self.bins[rows].to(device, non_blocking=True)
            yield gather, bins

    def step(self, gather, bins):
        with torch.autocast(device.type, torch.bfloat16):
            logits = self.model(gather)
        loss = F.cross_entropy(logits.float().flatten(0, 1), bins.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return loss

    def fit(self, steps):
        start = time.perf_counter()
        while self.done < steps:
            for gather, bins in self.batches():
                loss = self.step(gather, bins)
                if self.done % 100 == 0:
                    print(f"step {self.done} loss {loss.item():.4f}")
                if self.done == steps:
                    break
        print(f"last loss {loss.item():.4f}, {1000 * (time.perf_counter() - start) / steps:.1f} ms a step")


if __name__ == "__main__":
    Trainer().fit(STEPS)
