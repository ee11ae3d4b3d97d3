"""Fit an SIR epidemic with a physics-informed network and recover its rates."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import nn
from torch.autograd.functional import jacobian


@dataclass
class Config:
    steps: int = 350
    points: int = 32
    width: int = 64
    depth: int = 4
    lr: float = 1e-3
    horizon: float = 60.0
    report: int = 50


def simulate(cfg, beta=0.35, gamma=0.1):
    def rhs(_, y):
        s, i, _r = y
        return [-beta * s * i, beta * s * i - gamma * i, gamma * i]

    days = np.arange(0, cfg.horizon, 1.0)
    sol = solve_ivp(rhs, (0, cfg.horizon), [0.99, 0.01, 0.0], t_eval=days, rtol=1e-8)
    noise = np.random.default_rng(0).normal(0, 0.005, sol.y.T.shape)
    t = torch.tensor(days / cfg.horizon, dtype=torch.float32)[:, None]
    return t, torch.tensor(sol.y.T + noise, dtype=torch.float32)


class Epidemic(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        layers, last = [], 1
        for _ in range(cfg.depth):
            layers += [nn.Linear(last, cfg.width), nn.Tanh()]
            last = cfg.width
        self.net = nn.Sequential(*layers, nn.Linear(last, 3), nn.Softmax(-1))
        self.log_beta = nn.Parameter(torch.tensor(-2.0))
        self.log_gamma = nn.Parameter(torch.tensor(-2.0))

    def forward(self, t):
        return self.net(t)


class PhysicsLoss:
    """Residuals of the SIR equations at collocation times."""

    def __init__(self, model, horizon):
        self.model, self.horizon = model, horizon

    def derivatives(self, t):
        jac = jacobian(self.model, t, create_graph=True)
        idx = torch.arange(t.size(0))
        return jac[idx, :, idx, 0]

    def __call__(self, t):
        y = self.model(t)
        dy = self.derivatives(t) / self.horizon
        s, i = y[:, 0], y[:, 1]
        beta, gamma = self.model.log_beta.exp(), self.model.log_gamma.exp()
        infect, recover = beta * s * i, gamma * i
        rhs = torch.stack([-infect, infect - recover, recover], -1)
        return ((dy - rhs) * self.horizon).square().mean()


def fit(cfg):
    torch.manual_seed(0)
    t_obs, y_obs = simulate(cfg)
    model = Epidemic(cfg)
    physics = PhysicsLoss(model, cfg.horizon)
    rates = [model.log_beta, model.log_gamma]
    opt = torch.optim.Adam([{"params": model.net.parameters()}, {"params": rates, "lr": 10 * cfg.lr}], lr=cfg.lr)
    start = time.perf_counter()
    for step in range(1, cfg.steps + 1):
        t_col = torch.rand(cfg.points, 1)
        data = (model(t_obs) - y_obs).square().mean()
        residual = physics(t_col)
        loss = 10.0 * data + 0.1 * residual
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % cfg.report == 0:
            print(
                f"{step:5d} data {data.item():.5f} physics {residual.item():.5f} "
                f"beta {model.log_beta.exp().item():.3f} gamma {model.log_gamma.exp().item():.3f}",
                flush=True,
            )
    print(f"{1000 * (time.perf_counter() - start) / cfg.steps:.2f} ms/step")
    return model


if __name__ == "__main__":
    fit(Config())
