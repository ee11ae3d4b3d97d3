"""Trajectory forecasting: predict the next 12 positions of a vehicle from the last 40."""

import collections
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Simulator:
    """Draws smooth random trajectories with noise, observed part and future part."""

    def __init__(self, observed=40, future=12, seed=0):
        self.observed, self.future = observed, future
        self.rng = np.random.default_rng(seed)

    def draw(self, n):
        steps = self.observed + self.future
        heading = self.rng.uniform(-np.pi, np.pi, (n, 1)) + np.cumsum(
            0.08 * self.rng.standard_normal((n, steps)), axis=1
        )
        speed = 1.0 + 0.1 * np.cumsum(self.rng.standard_normal((n, steps)), axis=1) / steps
        pos = np.cumsum(np.stack([np.cos(heading), np.sin(heading)], 1) * speed[:, None], axis=2)
        pos -= pos[:, :, self.observed - 1 : self.observed]
        pos = pos.astype(np.float32)
        return pos[:, :, : self.observed], pos[:, :, self.observed :]


class Feeder(threading.Thread):
    """Keeps a few batches ready so that the training loop never waits for the simulator."""

    def __init__(self, sim, batch_size, depth=4):
        super().__init__(daemon=True)
        self.sim, self.batch_size, self.depth = sim, batch_size, depth
        self.ready = collections.deque()
        self.running = True

    def run(self):
        while self.running:
            if len(self.ready) < self.depth:
                past, future = self.sim.draw(self.batch_size)
                self.ready.append((torch.from_numpy(past.copy()), torch.from_numpy(future.copy())))

    def get(self):
        while not self.ready:
            time.sleep(0.0005)
        return self.ready.popleft()

    def close(self):
        self.running = False
        self.join()


class Forecaster(nn.Module):
    def __init__(self, width=128, future=12):
        super().__init__()
        self.future = future
        self.encoder = nn.Sequential(
            nn.Conv1d(2, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2, stride=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2, stride=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(width * 10, 2 * future)

    def forward(self, past):
        return self.head(self.encoder(past).flatten(1)).view(-1, 2, self.future)


class Trainer:
    def __init__(self, batch_size=128, lr=0.01):
        torch.manual_seed(0)
        self.model = Forecaster()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.feeder = Feeder(Simulator(), batch_size)
        self.val = [torch.from_numpy(a.copy()) for a in Simulator(seed=99).draw(512)]

    def step(self, past, future):
        loss = F.smooth_l1_loss(self.model(past), future)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def validate(self):
        past, future = self.val
        return (self.model(past) - future).norm(dim=1).mean().item()

    def fit(self, steps=120, report=40):
        self.feeder.start()
        begin = time.perf_counter()
        for i in range(1, steps + 1):
            loss = self.step(*self.feeder.get())
            if i % report == 0:
                print(f"step {i}: loss {loss.item():.4f} val displacement {self.validate():.3f}")
        took = time.perf_counter() - begin
        self.feeder.close()
        print(f"{1000 * took / steps:.1f} ms/step")


if __name__ == "__main__":
    Trainer().fit()
