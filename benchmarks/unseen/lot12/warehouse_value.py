"""Value network for a picking robot, targets from a one-step lookahead with short playouts."""

import copy
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]


class Warehouse:
    def __init__(self, size, items, rng):
        self.size = size
        self.walls = [[rng.random() < 0.15 for _ in range(size)] for _ in range(size)]
        self.price = [[rng.random() for _ in range(size)] for _ in range(size)]
        self.robot = (size // 2, size // 2)
        self.items = {(rng.randrange(size), rng.randrange(size)) for _ in range(items)}
        self.moves = 0

    def step(self, action):
        dr, dc = MOVES[action]
        row = (self.robot[0] + dr) % self.size
        col = (self.robot[1] + dc) % self.size
        self.moves += 1
        if self.walls[row][col]:
            return -0.1
        self.robot = (row, col)
        if self.robot in self.items:
            self.items.discard(self.robot)
            return 1.0 + self.price[row][col]
        return -0.01

    def done(self):
        return self.moves >= 60 or not self.items

    def observe(self, radius=4):
        seen = []
        for dr in range(-radius, radius + 1):
            for dc in range(-radius, radius + 1):
                row, col = (self.robot[0] + dr) % self.size, (self.robot[1] + dc) % self.size
                seen.append(float((row, col) in self.items) - 0.5 * self.walls[row][col])
        return seen


class Value(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(81, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x)[:, 0]


def lookahead(env, value, rng, depth=3, gamma=0.95):
    gains, leaves = [], []
    for action in range(len(MOVES)):
        sim = copy.deepcopy(env)
        gain = sim.step(action)
        for k in range(1, depth):
            gain += gamma**k * sim.step(rng.randrange(len(MOVES)))
        gains.append(gain)
        leaves.append(sim.observe())
    with torch.no_grad():
        return torch.tensor(gains) + gamma**depth * value(torch.tensor(leaves))


def main(steps=240, robots=12, size=28, items=60):
    torch.manual_seed(0)
    rng = random.Random(0)
    envs = [Warehouse(size, items, rng) for _ in range(robots)]
    value = Value()
    optimizer = torch.optim.Adam(value.parameters(), lr=1e-3)
    start, earned = time.time(), 0.0
    for step in range(1, steps + 1):
        states = torch.tensor([env.observe() for env in envs])
        scores = torch.stack([lookahead(env, value, rng) for env in envs])
        best, action = scores.max(1)
        loss = F.mse_loss(value(states), best)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for i, env in enumerate(envs):
            earned += env.step(int(action[i]))
            if env.done():
                envs[i] = Warehouse(size, items, rng)
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} earned {earned:.1f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
