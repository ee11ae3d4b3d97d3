"""Actor process simulates a planar arm, learner fits the controller on what it sends."""

import multiprocessing as mp
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

JOINTS = 6


class Arm:
    def __init__(self, rng, envs):
        self.rng = rng
        self.angle = rng.uniform(-1, 1, (envs, JOINTS))
        self.speed = np.zeros((envs, JOINTS))

    def step(self, torque):
        self.speed = 0.95 * self.speed + 0.1 * torque - 0.05 * np.sin(self.angle)
        self.angle = self.angle + 0.05 * self.speed
        return np.concatenate([self.angle, self.speed], 1)


def actor(conn, seed, envs, horizon):
    rng = np.random.default_rng(seed)
    arm = Arm(rng, envs)
    while True:
        gain = conn.recv()
        if gain is None:
            break
        states, torques = [], []
        state = arm.step(np.zeros((envs, JOINTS)))
        for _ in range(horizon):
            torque = state @ gain.T + 0.3 * rng.normal(size=(envs, JOINTS))
            states.append(state)
            torques.append(torque)
            state = arm.step(np.clip(torque, -2, 2))
        states.append(state)
        conn.send((np.stack(states).astype(np.float32), np.stack(torques).astype(np.float32)))


class Learner:
    def __init__(self, conn, width=128):
        self.conn = conn
        self.gain = nn.Parameter(torch.zeros(JOINTS, 2 * JOINTS))
        self.model = nn.Sequential(nn.Linear(3 * JOINTS, width), nn.ReLU(), nn.Linear(width, 2 * JOINTS))
        self.optimizer = torch.optim.Adam([self.gain, *self.model.parameters()], lr=1e-3)

    def collect(self):
        self.conn.send(self.gain.detach().numpy().copy())
        while not self.conn.poll():
            time.sleep(0.05)
        states, torques = self.conn.recv()
        return torch.from_numpy(states), torch.from_numpy(torques)

    def update(self, states, torques):
        now, after = states[:-1], states[1:]
        guess = now + self.model(torch.cat([now, torques], -1))
        fit = F.mse_loss(guess, after)
        planned = now + self.model(torch.cat([now, now @ self.gain.T], -1))
        loss = fit + 0.1 * planned.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return fit.item(), loss.item()


def main(steps=200, envs=64, horizon=120):
    torch.manual_seed(0)
    here, there = mp.Pipe()
    worker = mp.Process(target=actor, args=(there, 0, envs, horizon), daemon=True)
    worker.start()
    learner = Learner(here)
    start = time.time()
    for step in range(1, steps + 1):
        states, torques = learner.collect()
        fit, loss = learner.update(states, torques)
        if step % 30 == 0:
            print(f"step {step} fit {fit:.4f} loss {loss:.4f} {time.time() - start:.1f}s")
    here.send(None)
    worker.join()


if __name__ == "__main__":
    main()
