"""Neural ODE fitted to noisy damped pendulum trajectories, with fixed-step RK4."""

import logging
import time

import torch
import torch.nn as nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("pendulum")
torch.autograd.set_detect_anomaly(True)


class Field(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2)
        )

    def forward(self, state):
        angle, speed = state.unbind(-1)
        return self.net(torch.stack([angle.sin(), angle.cos(), speed], -1))


def pendulum(state):
    angle, speed = state.unbind(-1)
    return torch.stack([speed, -2.0 * angle.sin() - 0.15 * speed], -1)


def rk4(field, state, dt, steps):
    path = [state]
    for _ in range(steps):
        k1 = field(state)
        k2 = field(state + 0.5 * dt * k1)
        k3 = field(state + 0.5 * dt * k2)
        k4 = field(state + dt * k3)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(state)
    return torch.stack(path)


def make_trajectories(count, dt, steps):
    start = torch.stack([torch.empty(count).uniform_(-2, 2), torch.empty(count).uniform_(-1, 1)], -1)
    with torch.no_grad():
        clean = rk4(pendulum, start, dt, steps)
    return clean + 0.01 * torch.randn_like(clean)


def train_step(field, optimizer, path, dt):
    predicted = rk4(field, path[0], dt, len(path) - 1)
    loss = (predicted - path).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(field.parameters(), 5.0)
    optimizer.step()
    return loss


def main():
    torch.manual_seed(3)
    dt, horizon, batch, steps = 0.1, 20, 64, 400
    data = make_trajectories(512, dt, 200)
    field = Field()
    optimizer = torch.optim.Adam(field.parameters(), lr=3e-3)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        at = int(torch.randint(data.shape[0] - horizon, ()))
        who = torch.randint(data.shape[1], (batch,))
        loss = train_step(field, optimizer, data[at : at + horizon + 1, who], dt)
        if step % 40 == 0:
            log.info("step %d loss %.5f %.1f ms", step, loss.item(), (time.perf_counter() - began) * 25)
            began = time.perf_counter()


if __name__ == "__main__":
    main()
