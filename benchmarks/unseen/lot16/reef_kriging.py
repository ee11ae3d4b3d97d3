"""Gaussian process regression of sea surface temperature anomalies over a reef survey."""

import math
from typing import NamedTuple

import torch
from torch import nn


class Survey(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def simulate_survey(n, seed):
    """Longitude, latitude, depth and day of each cast, and the anomaly measured there."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 4, generator=g)
    lon, lat, depth, day = x.unbind(1)
    warm = torch.exp(-((lon - 0.4 - 0.3 * day) ** 2 + (lat - 0.6) ** 2) / 0.05)
    y = 1.5 * warm - 0.8 * depth + 0.3 * torch.sin(2 * math.pi * day)
    y = y + 0.15 * torch.randn(n, generator=g)
    return Survey(x, (y - y.mean()) / y.std())


class Kriging(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.log_length = nn.Parameter(torch.full((dims,), -0.7))
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(-1.5))
        self.mean = nn.Parameter(torch.zeros(()))

    def kernel(self, a, b):
        length = self.log_length.exp()
        a, b = a / length, b / length
        sq = a.pow(2).sum(1, keepdim=True) + b.pow(2).sum(1) - 2 * a @ b.T
        return (2 * self.log_scale).exp() * torch.exp(-0.5 * sq.clamp_min(0))

    def factor(self, x):
        noise = (2 * self.log_noise).exp() + 1e-4
        return torch.linalg.cholesky(self.kernel(x, x) + noise * torch.eye(len(x)))

    def negative_evidence(self, survey):
        chol = self.factor(survey.x)
        white = torch.linalg.solve_triangular(chol, (survey.y - self.mean)[:, None], upper=False)
        logdet = chol.diagonal().log().sum()
        return (0.5 * white.pow(2).sum() + logdet) / len(survey.y) + 0.5 * math.log(2 * math.pi)

    @torch.no_grad()
    def predict(self, survey, x):
        chol = self.factor(survey.x)
        weights = torch.cholesky_solve((survey.y - self.mean)[:, None], chol)
        return self.mean + (self.kernel(x, survey.x) @ weights).squeeze(1)


def fit(model, train, test, steps=400, lr=0.02):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(1, steps + 1):
        loss = model.negative_evidence(train)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            rmse = (model.predict(train, test.x) - test.y).pow(2).mean().sqrt()
            lengths = ", ".join(f"{v:.2f}" for v in model.log_length.detach().exp().tolist())
            print(f"step {step:4d}  evidence {-loss.item():.4f}  rmse {rmse.item():.3f}  lengths [{lengths}]")


if __name__ == "__main__":
    survey = simulate_survey(1100, seed=17)
    train, test = Survey(survey.x[:900], survey.y[:900]), Survey(survey.x[900:], survey.y[900:])
    fit(Kriging(dims=4), train, test)
