"""Deep Q-learning with prioritised replay on a small pendulum simulation."""

import collections
import math
import random

import numpy as np
import torch
import torch.nn as nn

Step = collections.namedtuple("Step", "state action reward following")
FORCES = (-2.0, 0.0, 2.0)


class Pendulum:
    def __init__(self, rng):
        self.rng = rng
        self.angle, self.speed = rng.uniform(-3, 3), 0.0

    def observe(self):
        return (math.cos(self.angle), math.sin(self.angle), self.speed / 8)

    def act(self, action):
        force = FORCES[action]
        self.speed += 0.05 * (15 * math.sin(self.angle) + 3 * force)
        self.speed = max(-8.0, min(8.0, self.speed))
        self.angle = (self.angle + 0.05 * self.speed + math.pi) % (2 * math.pi) - math.pi
        return -(self.angle**2 + 0.1 * self.speed**2)


class Replay:
    def __init__(self, capacity=400000, alpha=0.6):
        self.steps = []
        self.priorities = []
        self.capacity = capacity
        self.alpha = alpha
        self.cursor = 0

    def add(self, step):
        if len(self.steps) < self.capacity:
            self.steps.append(step)
            self.priorities.append(1.0)
        else:
            self.steps[self.cursor] = step
            self.priorities[self.cursor] = 1.0
        self.cursor = (self.cursor + 1) % self.capacity

    def sample(self, size, beta=0.4):
        probs = np.array(self.priorities)
        probs /= probs.sum()
        picks = np.random.choice(len(self.steps), size, p=probs)
        weights = (len(self.steps) * probs[picks]) ** -beta
        batch = [torch.tensor(c) for c in zip(*(self.steps[i] for i in picks))]
        return picks, torch.tensor(weights / weights.max(), dtype=torch.float32), batch

    def update(self, picks, errors):
        for i, error in zip(picks, errors):
            self.priorities[i] = (error + 1e-3) ** self.alpha


def play(env, replay, count, rng):
    for _ in range(count):
        state, action = env.observe(), rng.randrange(3)
        reward = env.act(action)
        replay.add(Step(state, action, reward, env.observe()))


def build_net():
    return nn.Sequential(nn.Linear(3, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    rng = random.Random(0)
    env, replay = Pendulum(rng), Replay()
    play(env, replay, 350000, rng)
    online, target = build_net(), build_net()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)
    for update in range(300):
        play(env, replay, 4, rng)
        picks, weights, batch = replay.sample(512)
        state, action, reward, following = batch
        with torch.no_grad():
            goal = reward + 0.97 * target(following).max(dim=1).values
        value = online(state).gather(1, action[:, None]).squeeze(1)
        error = goal - value
        loss = (weights * error.pow(2)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.update(picks, error.detach().abs().tolist())
        if update % 50 == 0:
            target.load_state_dict(online.state_dict())
            print(f"update {update} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
