"""Double DQN that learns reorder quantities for a warehouse simulator."""

import random
import time
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

N_ACTIONS = 8
STATE = 10


class Warehouse:
    """Independent product lines, advanced together."""

    def __init__(self, lines=256, seed=0):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.normal(0, 1, (lines, STATE)).astype(np.float32)

    def step(self, actions):
        before = self.state
        demand = self.rng.poisson(3, len(actions)).astype(np.float32)
        after = np.roll(before, 1, axis=1)
        after[:, 0] = np.clip(before[:, 0] + 0.1 * (actions - demand), -3, 3)
        reward = -np.abs(after[:, 0]) - 0.02 * actions
        self.state = after
        return before, reward.astype(np.float32), after


class ReplayMemory:
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def push(self, states, actions, rewards, next_states):
        self.buffer.extend(zip(states, actions, rewards, next_states))

    def sample(self, n):
        s, a, r, s2 = zip(*random.sample(self.buffer, n))
        return (
            torch.from_numpy(np.stack(s)),
            torch.from_numpy(np.array(a)),
            torch.from_numpy(np.array(r)),
            torch.from_numpy(np.stack(s2)),
        )

    def __len__(self):
        return len(self.buffer)


def q_network():
    return nn.Sequential(nn.Linear(STATE, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, N_ACTIONS))


def td_loss(online, target, batch, gamma=0.97):
    s, a, r, s2 = batch
    q = online(s).gather(1, a[:, None]).squeeze(1)
    with torch.no_grad():
        best = online(s2).argmax(1, keepdim=True)
        goal = r + gamma * target(s2).gather(1, best).squeeze(1)
    return F.smooth_l1_loss(q, goal)


def main(steps=300, warmup=2400):
    torch.manual_seed(0)
    random.seed(0)
    rng = np.random.default_rng(0)
    env, memory = Warehouse(), ReplayMemory(600_000)
    for _ in range(warmup):
        actions = rng.integers(0, N_ACTIONS, 256)
        before, reward, after = env.step(actions)
        memory.push(before, actions, reward, after)
    online, target = q_network(), q_network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    start = time.time()
    for step in range(1, steps + 1):
        with torch.no_grad():
            actions = online(torch.from_numpy(env.state)).argmax(1).numpy()
        explore = rng.random(256) < 0.1
        actions = np.where(explore, rng.integers(0, N_ACTIONS, 256), actions)
        before, reward, after = env.step(actions)
        memory.push(before, actions, reward, after)
        loss = td_loss(online, target, memory.sample(256))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            target.load_state_dict(online.state_dict())
            print(f"step {step} loss {loss.item():.4f} reward {reward.mean():.3f}", flush=True)
    print(f"{steps} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
