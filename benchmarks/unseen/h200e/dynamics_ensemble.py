"""Probabilistic ensemble of dynamics models for planning (in the manner of PETS), each on its own bootstrap."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS = int(os.environ.get("STEPS", 2500))
MEMBERS, BATCH, WIDTH = (40, 1024, 400) if DEVICE.type == "cuda" else (4, 64, 64)
STATE, ACTION = 18, 6


def transitions(n):
    """A nonlinear oscillator chain pushed by random actions, with state-dependent noise."""
    state = torch.randn(n, STATE, device=DEVICE)
    action = torch.rand(n, ACTION, device=DEVICE) * 2 - 1
    mix = torch.randn(STATE, STATE, device=DEVICE) / STATE**0.5
    push = torch.randn(ACTION, STATE, device=DEVICE)
    delta = 0.1 * torch.sin(state @ mix) + 0.05 * action @ push - 0.02 * state**3
    delta = delta + 0.02 * state.abs() * torch.randn_like(state)
    return torch.cat([state, action], 1), delta


class DynamicsModel(nn.Module):
    """Predicts mean and log variance of the change of the state."""

    def __init__(self):
        super().__init__()
        sizes = [STATE + ACTION] + [WIDTH] * 4
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.out = nn.Linear(WIDTH, 2 * STATE)

    def forward(self, x):
        for layer in self.hidden:
            x = F.silu(layer(x))
        mean, logvar = self.out(x).chunk(2, -1)
        return mean, 4.0 * torch.tanh(logvar / 4.0) - 4.0


class Ensemble(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.models = nn.ModuleList(DynamicsModel() for _ in range(members))

    def loss(self, x, y):
        total = 0.0
        for i, model in enumerate(self.models):
            mean, logvar = model(x[i])
            total = total + gaussian_nll(mean, logvar, y[i])
        return total


def gaussian_nll(mean, logvar, target):
    return (0.5 * (logvar + (target - mean) ** 2 * torch.exp(-logvar))).sum(-1).mean()


def run():
    torch.manual_seed(8)
    torch.set_float32_matmul_precision("high")
    inputs, targets = transitions(200_000)
    bootstrap = torch.randint(len(inputs), (MEMBERS, len(inputs)), device=DEVICE)
    ensemble = Ensemble(MEMBERS).to(DEVICE)
    optimizer = torch.optim.AdamW(ensemble.parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    started = time.perf_counter()
    for step in range(STEPS):
        column = torch.randint(len(inputs), (BATCH,), device=DEVICE)
        rows = bootstrap[:, column]
        loss = ensemble.loss(inputs[rows], targets[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print(f"step {step}: nll of a member {loss.item() / MEMBERS:.3f}")
    print(f"final {loss.item() / MEMBERS:.3f}, {1000 * (time.perf_counter() - started) / STEPS:.2f} ms a step")


if __name__ == "__main__":
    run()
