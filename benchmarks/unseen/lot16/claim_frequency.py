"""Poisson regression of motor claim counts, rows drawn in proportion to exposure."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ROWS = 1_000_000
FEATURES = 16
BATCH = 512
STEPS = 2400

rng = np.random.default_rng(11)
torch.manual_seed(11)

features = rng.standard_normal((ROWS, FEATURES), dtype=np.float32)
exposure = rng.beta(2.0, 1.2, ROWS)
log_rate = -1.8 + 0.5 * features[:, 0] - 0.3 * features[:, 1] * features[:, 2] + 0.2 * np.abs(features[:, 3])
claims = rng.poisson(np.exp(log_rate)).astype(np.float32)
share = exposure / exposure.sum()

table = torch.from_numpy(features)
counts = torch.from_numpy(claims)

model = nn.Sequential(
    nn.Linear(FEATURES, 192),
    nn.SiLU(),
    nn.LayerNorm(192),
    nn.Linear(192, 192),
    nn.SiLU(),
    nn.Linear(192, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)


def deviance(log_mu, y):
    mu = log_mu.exp()
    safe = torch.where(y > 0, y, torch.ones_like(y))
    return 2 * (torch.where(y > 0, y * (safe.log() - log_mu), torch.zeros_like(y)) - (y - mu)).mean()


held_out = torch.from_numpy(rng.integers(0, ROWS, 4096))
smoothed = None

for step in range(STEPS):
    rows = torch.from_numpy(rng.choice(ROWS, size=BATCH, p=share))
    x, y = table[rows], counts[rows]

    log_mu = model(x).squeeze(1)
    loss = F.poisson_nll_loss(log_mu, y, log_input=True)

    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()

    value = loss.item()
    smoothed = value if smoothed is None else 0.98 * smoothed + 0.02 * value
    if (step + 1) % 300 == 0:
        with torch.no_grad():
            dev = deviance(model(table[held_out]).squeeze(1), counts[held_out])
        print(f"step {step + 1:5d}  nll {smoothed:.4f}  held-out deviance {dev.item():.4f}")
