"""Rainfall-runoff model for a group of gauges.

Hourly rain and temperature are turned into effective rain by a small network shared by all gauges,
and every gauge routes it to its outlet with its own unit hydrograph, which is learned lag by lag.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def synth_catchments(gauges, hours, lags, seed=3):
    rng = np.random.default_rng(seed)
    wet = rng.random((gauges, hours)) < 0.06
    rain = (wet * rng.gamma(1.3, 2.0, (gauges, hours))).astype(np.float32)
    day = np.arange(hours) / 24.0
    temp = 9 + 10 * np.sin(2 * np.pi * day / 365.25)[None] + rng.normal(0, 1.5, (gauges, hours))
    lag = np.arange(lags)
    flow = np.zeros_like(rain)
    for g in range(gauges):
        shape, scale = rng.uniform(1.5, 3.0), rng.uniform(30, 80)
        uh = (lag + 1) ** (shape - 1) * np.exp(-lag / scale)
        uh /= uh.sum()
        net = rain[g] * (1 / (1 + np.exp((temp[g] - 14) / 4)))
        flow[g] = np.convolve(net, uh)[:hours]
    return torch.from_numpy(rain), torch.tensor(temp, dtype=torch.float32), torch.from_numpy(flow)


class Loss(nn.Module):
    """Share of the rain that becomes runoff, from rain and temperature."""

    def __init__(self, width=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, rain, temp):
        z = torch.stack([torch.log1p(rain), (temp - 10) / 10], dim=-1)
        return rain * torch.sigmoid(self.net(z).squeeze(-1))


class Routing(nn.Module):
    def __init__(self, gauges, lags):
        super().__init__()
        self.gauges, self.lags = gauges, lags
        self.raw = nn.Parameter(-torch.arange(lags).float().div(60.0).repeat(gauges, 1))

    def ordinates(self):
        return torch.softmax(self.raw, dim=-1)

    def forward(self, x):
        kernel = self.ordinates().flip(-1).unsqueeze(1)
        x = F.pad(x, (self.lags - 1, 0))
        return F.conv1d(x, kernel, groups=self.gauges)


class Catchments(nn.Module):
    def __init__(self, gauges, lags):
        super().__init__()
        self.loss = Loss()
        self.routing = Routing(gauges, lags)

    def forward(self, rain, temp):
        return self.routing(self.loss(rain, temp))


def windows(series, starts, length):
    return torch.stack([series[:, s : s + length] for s in starts])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gauges", type=int, default=6)
    ap.add_argument("--lags", type=int, default=720)
    ap.add_argument("--window", type=int, default=2160)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--steps", type=int, default=500)
    args = ap.parse_args()

    torch.manual_seed(0)
    rain, temp, flow = synth_catchments(args.gauges, 24 * 365 * 4, args.lags)
    scale = flow.std(dim=1, keepdim=True)
    model = Catchments(args.gauges, args.lags)
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    rng = np.random.default_rng(1)
    t0 = time.perf_counter()
    for step in range(args.steps):
        starts = rng.integers(0, rain.shape[1] - args.window, args.batch).tolist()
        r, t, q = (windows(s, starts, args.window) for s in (rain, temp, flow))
        sim = model(r, t)
        err = ((sim - q) / scale)[..., args.lags :]
        loss = err.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step:4d}  nse {1 - loss.item():.4f}")
    took = time.perf_counter() - t0
    print(f"{args.steps} steps, {took:.1f} s, {1e3 * took / args.steps:.2f} ms a step")


if __name__ == "__main__":
    main()
