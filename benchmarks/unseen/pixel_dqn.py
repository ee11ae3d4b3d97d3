"""Q-learning on small frames, with a replay buffer of transitions."""

import os
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", 80))
ACTIONS = 4
FRAME = (2, 40, 40)


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(2, 8, 5, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(16 * 4 * 4, ACTIONS)

    def forward(self, x):
        return self.head(self.conv(x))


class Catcher:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.frame = self.rng.random(FRAME, dtype=np.float32)

    def step(self, action):
        self.frame = np.roll(self.frame, action + 1, axis=2)
        return self.frame, float(self.frame[0, 0, 0] > 0.5)


class Agent:
    def __init__(self):
        self.q = QNet()
        self.target = QNet().requires_grad_(False)
        self.buffer = deque(maxlen=5000)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-4, fused=True)

    def collect(self, env, n):
        for _ in range(n):
            state = env.frame
            action = random.randrange(ACTIONS)
            nxt, reward = env.step(action)
            self.buffer.append((state, action, reward, nxt))

    def learn(self, batch_size=64):
        state, action, reward, nxt = zip(*random.sample(self.buffer, batch_size))
        state = torch.tensor(state)
        nxt = torch.tensor(nxt)
        action = torch.tensor(action)
        reward = torch.tensor(reward)
        with torch.no_grad():
            goal = reward + 0.99 * self.target(nxt).max(1).values
        value = self.q(state).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    env, agent = Catcher(), Agent()
    agent.collect(env, 1000)
    for step in range(STEPS):
        agent.collect(env, 4)
        loss = agent.learn()
        if step % 20 == 0:
            agent.target.load_state_dict(agent.q.state_dict())
            print("step", step, "td loss", f"{loss.item():.5f}")
