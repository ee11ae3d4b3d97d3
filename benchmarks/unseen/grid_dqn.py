import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACTIONS = 96, 6


class GridEnv:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.normal(size=OBS)

    def step(self, action):
        self.state = 0.9 * self.state + 0.1 * self.rng.normal(size=OBS)
        return self.state.tolist(), float(self.state[action]), bool(self.rng.random() < 0.02)


class ReplayMemory:
    def __init__(self, capacity=20000):
        self.memory = deque(maxlen=capacity)

    def push(self, state, action, reward, next_state, done):
        self.memory.append((state, action, reward, next_state, done))

    def sample(self, batch_size):
        batch = random.sample(self.memory, batch_size)
        s, a, r, s2, d = zip(*batch)
        return (
            torch.tensor(s),
            torch.tensor(a),
            torch.tensor(r),
            torch.tensor(s2),
            torch.tensor(d, dtype=torch.float32),
        )


class QNet(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(OBS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, ACTIONS)
        )

    def forward(self, x):
        return self.net(x)


def optimize(policy, target, memory, optimizer, batch_size=512, gamma=0.99):
    s, a, r, s2, d = memory.sample(batch_size)
    q = policy(s).gather(1, a.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        y = r + gamma * (1 - d) * target(s2).max(1).values
    loss = F.smooth_l1_loss(q, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def main():
    random.seed(0)
    torch.manual_seed(0)
    env, memory = GridEnv(), ReplayMemory()
    policy, target = QNet(), QNet()
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    state = env.state.tolist()
    for t in range(12000):
        action = random.randrange(ACTIONS)
        nxt, reward, done = env.step(action)
        memory.push(state, action, reward, nxt, done)
        state = nxt
    for step in range(80):
        action = int(policy(torch.tensor(state)).argmax())
        nxt, reward, done = env.step(action)
        memory.push(state, action, reward, nxt, done)
        state = nxt
        loss = optimize(policy, target, memory, optimizer)
        if step % 20 == 0:
            target.load_state_dict(policy.state_dict())
            print("step", step, "loss", loss.item())


if __name__ == "__main__":
    main()
