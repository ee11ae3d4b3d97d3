"""DQN for restocking a shop, warm-started from logged transitions."""

import random
import time
from collections import deque, namedtuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Transition = namedtuple("Transition", "state action reward next_state")
STATE, ACTIONS = 12, 6


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *values):
        self.memory.append(Transition(*values))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class Shop:
    def __init__(self, rng):
        self.rng = rng
        self.stock = rng.random(STATE).astype(np.float32)

    def step(self, action):
        before = self.stock.copy()
        self.stock[action * 2 : action * 2 + 2] += 0.3
        sold = np.minimum(self.stock, self.rng.random(STATE).astype(np.float32) * 0.1)
        self.stock = np.clip(self.stock - sold, 0, 2)
        reward = float(sold.sum() - 0.05 * self.stock.sum())
        return before, reward, self.stock.copy()


class QNet(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(STATE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, ACTIONS)
        )

    def forward(self, x):
        return self.net(x)


def load_logged(memory, count, rng):
    states = rng.random((count + 1, STATE), dtype=np.float32)
    actions = rng.integers(0, ACTIONS, count).tolist()
    rewards = (states[:-1].sum(1) * 0.05).tolist()
    for state, action, reward, following in zip(states, actions, rewards, states[1:]):
        memory.push(state, action, reward, following)


def update(qnet, target, optimizer, memory, batch_size, gamma=0.98):
    batch = Transition(*zip(*memory.sample(batch_size)))
    state = torch.from_numpy(np.stack(batch.state))
    following = torch.from_numpy(np.stack(batch.next_state))
    action = torch.tensor(batch.action)
    reward = torch.tensor(batch.reward)
    with torch.no_grad():
        goal = reward + gamma * target(following).amax(1)
    q = qnet(state).gather(1, action[:, None])[:, 0]
    loss = F.smooth_l1_loss(q, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def main(steps=250, batch_size=512, logged=800000):
    rng = np.random.default_rng(0)
    random.seed(0)
    torch.manual_seed(0)
    memory = ReplayMemory(1000000)
    load_logged(memory, logged, rng)
    qnet, target = QNet(), QNet()
    target.load_state_dict(qnet.state_dict())
    optimizer = torch.optim.Adam(qnet.parameters(), lr=1e-3)
    shop = Shop(rng)
    start = time.time()
    for step in range(1, steps + 1):
        with torch.no_grad():
            action = int(qnet(torch.from_numpy(shop.stock)).argmax())
        if random.random() < 0.1:
            action = random.randrange(ACTIONS)
        before, reward, after = shop.step(action)
        memory.push(before, action, reward, after)
        loss = update(qnet, target, optimizer, memory, batch_size)
        if step % 50 == 0:
            target.load_state_dict(qnet.state_dict())
            print(f"step {step} loss {loss.item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
