"""Fit a coordinate network to an airborne lidar survey of a dune field (height from easting, northing)."""

import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

RETURNS = 800_000
STEPS = 800
POINTS = 2048


def fly_survey(n, seed=17):
    rng = np.random.default_rng(seed)
    east = rng.random(n, dtype=np.float32)
    north = rng.random(n, dtype=np.float32)
    z = np.zeros(n, dtype=np.float32)
    for k in range(1, 9):
        angle = rng.uniform(-0.4, 0.4)
        freq = 3.0 * k
        arg = 2 * np.pi * freq * (np.cos(angle) * east + np.sin(angle) * north) + rng.uniform(0, 6.28)
        z += np.abs(np.sin(arg)).astype(np.float32) / k
    z += 0.02 * rng.standard_normal(n, dtype=np.float32)
    return np.stack([east, north], axis=1), (z - z.mean()) / z.std()


class FourierFeatures(nn.Module):
    def __init__(self, bands, spread):
        super().__init__()
        self.register_buffer("freq", torch.randn(2, bands) * spread)

    def forward(self, xy):
        a = 2 * torch.pi * xy @ self.freq
        return torch.cat([a.sin(), a.cos()], dim=-1)


def build(bands=48, width=128):
    return nn.Sequential(
        FourierFeatures(bands, 8.0),
        nn.Linear(2 * bands, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 1),
    )


class Survey:
    def __init__(self, xy, z):
        self.xy, self.z = xy, z

    def __len__(self):
        return len(self.z)

    def draw(self, count):
        pick = np.random.choice(len(self), size=count, replace=False)
        return torch.from_numpy(self.xy[pick]), torch.from_numpy(self.z[pick]).unsqueeze(1)


def residual(net, survey, count=20_000):
    with torch.inference_mode():
        xy, z = survey.draw(count)
        return F.mse_loss(net(xy), z).sqrt().item()


def fit(net, survey, steps):
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for step in range(1, steps + 1):
        xy, z = survey.draw(POINTS)
        loss = F.smooth_l1_loss(net(xy), z)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 100 == 0:
            print(f"{step:5d}  loss {loss.item():.4f}  rmse {residual(net, survey):.4f}")


if __name__ == "__main__":
    np.random.seed(3)
    torch.manual_seed(3)
    survey = Survey(*fly_survey(RETURNS))
    net = build()
    tick = time.perf_counter()
    fit(net, survey, STEPS)
    tock = time.perf_counter() - tick
    print(f"{STEPS} steps, {tock:.1f} s, {1e3 * tock / STEPS:.2f} ms a step")
