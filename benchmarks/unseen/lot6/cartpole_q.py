"""Q-learning on a toy balancing task with prioritised replay."""

import collections
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = collections.namedtuple("Transition", "state action reward next_state")


class Balance:
    """A linearised pole: push left or right, stay near upright."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.normal(size=4) * 0.1

    def step(self, action):
        push = 0.05 if action else -0.05
        x, v, a, w = self.state
        w = w + 0.04 * a - push + self.rng.normal() * 0.01
        v = v + push
        self.state = np.array([x + 0.05 * v, v, a + 0.05 * w, w])
        reward = 1.0 - min(1.0, abs(self.state[2]))
        if abs(self.state[2]) > 1 or abs(self.state[0]) > 3:
            self.state = self.rng.normal(size=4) * 0.1
        return self.state.copy(), reward


class ReplayMemory:
    def __init__(self, capacity, alpha=0.6):
        self.capacity, self.alpha = capacity, alpha
        self.items, self.priorities, self.head = [], [], 0

    def push(self, item):
        top = 1.0
        if len(self.items) < self.capacity:
            self.items.append(item)
            self.priorities.append(top)
        else:
            self.items[self.head] = item
            self.priorities[self.head] = top
        self.head = (self.head + 1) % self.capacity

    def sample(self, n):
        scaled = [p**self.alpha for p in self.priorities]
        total = sum(scaled)
        probs = [s / total for s in scaled]
        picks = np.random.choice(len(self.items), n, p=probs)
        weights = (len(self.items) * np.array([probs[i] for i in picks])) ** -0.4
        batch = Transition(*zip(*(self.items[i] for i in picks)))
        return picks, batch, torch.tensor(weights / weights.max(), dtype=torch.float32)

    def update(self, picks, errors):
        for i, e in zip(picks, errors):
            self.priorities[i] = abs(e) + 1e-3


def q_net():
    return nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    env, memory, net, target = Balance(), ReplayMemory(150_000), q_net(), q_net()
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=5e-4)
    state = env.state.copy()
    for _ in range(120_000):
        action = np.random.randint(2)
        nxt, reward = env.step(action)
        memory.push(Transition(state, action, reward, nxt))
        state = nxt
    start = time.time()
    for step in range(1, 301):
        with torch.no_grad():
            q = net(torch.tensor(state, dtype=torch.float32))
        action = int(q.argmax()) if np.random.rand() > 0.1 else np.random.randint(2)
        nxt, reward = env.step(action)
        memory.push(Transition(state, action, reward, nxt))
        state = nxt
        picks, batch, weights = memory.sample(256)
        s = torch.tensor(np.stack(batch.state), dtype=torch.float32)
        s2 = torch.tensor(np.stack(batch.next_state), dtype=torch.float32)
        with torch.no_grad():
            goal = torch.tensor(batch.reward, dtype=torch.float32) + 0.97 * target(s2).max(1).values
        value = net(s).gather(1, torch.tensor(batch.action)[:, None]).squeeze(1)
        loss = (weights * F.smooth_l1_loss(value, goal, reduction="none")).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        memory.update(picks, (value - goal).detach().tolist())
        if step % 50 == 0:
            target.load_state_dict(net.state_dict())
            print(f"step {step} loss {loss.item():.4f}")
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
