"""Double DQN with proportional prioritised replay on a small pendulum simulator."""

import math
import random
import time

import numpy as np
import torch
from torch import nn


class Pendulum:
    def reset(self):
        self.angle, self.speed, self.t = random.uniform(-math.pi, math.pi), 0.0, 0
        return self.observe()

    def observe(self):
        return np.array([math.cos(self.angle), math.sin(self.angle), self.speed / 8, self.t / 200], np.float32)

    def step(self, action):
        torque = 2.0 if action else -2.0
        self.speed = min(8.0, max(-8.0, self.speed + 0.05 * (15 * math.sin(self.angle) + 3 * torque)))
        self.angle, self.t = self.angle + 0.05 * self.speed, self.t + 1
        return self.observe(), math.cos(self.angle), self.t >= 200


class ReplayMemory:
    def __init__(self, capacity, alpha=0.6):
        self.capacity, self.alpha = capacity, alpha
        self.data = []
        self.priorities = []
        self.pos = 0

    def push(self, item):
        top = max(1.0, self.priorities[self.pos - 1]) if self.data else 1.0
        if len(self.data) < self.capacity:
            self.data.append(item)
            self.priorities.append(top)
        else:
            self.data[self.pos] = item
            self.priorities[self.pos] = top
        self.pos = (self.pos + 1) % self.capacity

    def probabilities(self):
        scaled = np.array(self.priorities) ** self.alpha
        return scaled / scaled.sum()

    def sample(self, k, beta):
        probs = self.probabilities()
        picks = random.choices(range(len(self.data)), k=k, weights=probs)
        weight = (len(self.data) * probs[picks]) ** -beta
        s, a, r, s2, d = zip(*[self.data[i] for i in picks])
        batch = (
            torch.from_numpy(np.stack(s)),
            torch.tensor(a),
            torch.tensor(r),
            torch.from_numpy(np.stack(s2)),
            torch.tensor(d, dtype=torch.float32),
        )
        return batch, picks, torch.from_numpy((weight / weight.max()).astype(np.float32))

    def update(self, picks, errors):
        for i, e in zip(picks, errors.tolist()):
            self.priorities[i] = abs(e) + 1e-3


def qnet(width):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def main(steps=1300, capacity=50000, size=128):
    random.seed(0), torch.manual_seed(0)
    env, memory = Pendulum(), ReplayMemory(capacity)
    policy, target = qnet(192), qnet(192)
    target.load_state_dict(policy.state_dict())
    opt = torch.optim.Adam(policy.parameters(), lr=5e-4)

    state = env.reset()
    for _ in range(capacity):
        action = random.randrange(2)
        nxt, reward, done = env.step(action)
        memory.push((state, action, reward, nxt, done))
        state = env.reset() if done else nxt

    began, earned = time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        if random.random() < max(0.05, 1 - step / 1000):
            action = random.randrange(2)
        else:
            with torch.no_grad():
                action = int(policy(torch.from_numpy(state)).argmax())
        nxt, reward, done = env.step(action)
        memory.push((state, action, reward, nxt, done))
        earned += reward
        state = env.reset() if done else nxt
        (s, a, r, s2, d), picks, weight = memory.sample(size, beta=0.4 + 0.6 * step / steps)
        with torch.no_grad():
            best = policy(s2).argmax(1, keepdim=True)
            goal = r + 0.99 * (1 - d) * target(s2).gather(1, best).squeeze(1)
        error = policy(s).gather(1, a[:, None]).squeeze(1) - goal
        loss = (weight * error.square()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        memory.update(picks, error.detach())
        if step % 200 == 0:
            target.load_state_dict(policy.state_dict())
            print(f"{step:5d} loss {loss.item():.4f} reward {earned / 200:.3f}", flush=True)
            earned = 0.0
    print(f"{1000 * (time.perf_counter() - began) / steps:.2f} ms/step")


if __name__ == "__main__":
    main()
