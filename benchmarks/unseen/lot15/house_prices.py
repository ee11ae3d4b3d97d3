"""Residual MLP regression with a mixture density head on synthetic house sales."""

import math
import time

import torch
from torch import nn


def sales(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    w = torch.randn(24, generator=g) / 5
    mode = (torch.rand(n, generator=g) < 0.3).float()
    y = x @ w + 0.5 * torch.sin(2 * x[:, 0]) + mode * 1.5 + 0.1 * torch.randn(n, generator=g)
    return x, y


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.relu(self.up(self.norm(x))))


class PriceModel(nn.Module):
    def __init__(self, width=160, depth=4, parts=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, width), *[Residual(width) for _ in range(depth)])
        self.head = nn.Linear(width, 3 * parts)

    def forward(self, x):
        weight, mean, log_std = self.head(self.trunk(x)).chunk(3, dim=-1)
        return weight.log_softmax(-1), mean, log_std.clamp(-5, 3)

    def trunk(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.body(x).float()

    def nll(self, x, y):
        weight, mean, log_std = self(x)
        z = (y[:, None] - mean) * torch.exp(-log_std)
        log_p = weight - 0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(log_p, -1).mean()


class Experiment:
    def __init__(self, batch=512, steps=2700):
        torch.manual_seed(12)
        self.batch, self.steps = batch, steps
        self.x, self.y = sales(40_000, 1)
        self.model = PriceModel()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, 3e-3, total_steps=steps)

    def step(self):
        pick = torch.randint(36_000, (self.batch,))
        loss = self.model.nll(self.x[pick], self.y[pick])
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.sched.step()
        return loss

    @torch.inference_mode()
    def validate(self):
        return self.model.nll(self.x[36_000:], self.y[36_000:]).item()

    def run(self):
        clock = time.perf_counter()
        for step in range(1, self.steps + 1):
            loss = self.step()
            if step % 50 == 0:
                took = time.perf_counter() - clock
                print(f"{step} train {loss.item():.3f} {took * 20:.1f} ms/step", flush=True)
                clock = time.perf_counter()
        print(f"held-out nll {self.validate():.3f}")


Experiment().run()
