"""DQN on a small key-and-door grid world, a few environments stepped side by side."""

import random
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn

SIZE = 8
N_ENVS = 16
GAMMA = 0.97


class GridWorld:
    moves = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.n = n
        self.pos = self.rng.integers(0, SIZE, (n, 2))
        self.goal = self.rng.integers(0, SIZE, (n, 2))
        self.age = np.zeros(n, dtype=int)

    def observe(self):
        obs = np.zeros((self.n, 2, SIZE, SIZE), dtype=np.float32)
        rows = np.arange(self.n)
        obs[rows, 0, self.pos[:, 0], self.pos[:, 1]] = 1
        obs[rows, 1, self.goal[:, 0], self.goal[:, 1]] = 1
        return obs.reshape(self.n, -1)

    def step(self, action):
        self.pos = np.clip(self.pos + self.moves[action], 0, SIZE - 1)
        self.age += 1
        won = (self.pos == self.goal).all(1)
        done = won | (self.age >= 40)
        nxt = self.observe()
        k = int(done.sum())
        self.pos[done] = self.rng.integers(0, SIZE, (k, 2))
        self.goal[done] = self.rng.integers(0, SIZE, (k, 2))
        self.age[done] = 0
        return nxt, won.astype(np.float32) - 0.02, done.astype(np.float32)


class Replay:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def __len__(self):
        return len(self.memory)

    def push(self, obs, action, reward, nxt, done):
        for row in zip(obs, action, reward, nxt, done):
            self.memory.append(row)

    def sample(self, k):
        obs, action, reward, nxt, done = zip(*random.sample(self.memory, k))
        return (torch.tensor(obs), torch.tensor(action), torch.tensor(reward), torch.tensor(nxt), torch.tensor(done))


def q_network():
    return nn.Sequential(nn.Linear(2 * SIZE * SIZE, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))


random.seed(0)
torch.manual_seed(0)
env, replay = GridWorld(N_ENVS, 0), Replay(60_000)
online, target = q_network(), q_network()
target.load_state_dict(online.state_dict())
opt = torch.optim.Adam(online.parameters(), lr=5e-4)
act_rng = np.random.default_rng(1)

obs, step, start = env.observe(), 0, time.perf_counter()
while step < 2200:
    eps = max(0.05, 1 - step / 1200)
    with torch.inference_mode():
        greedy = online(torch.from_numpy(obs)).argmax(1).numpy()
    action = np.where(act_rng.random(N_ENVS) < eps, act_rng.integers(0, 4, N_ENVS), greedy)
    nxt, reward, done = env.step(action)
    replay.push(obs, action, reward, nxt, done)
    obs = env.observe()
    if len(replay) < 2000:
        continue

    s, a, r, s2, d = replay.sample(256)
    with torch.no_grad():
        goal = r + GAMMA * (1 - d) * target(s2).amax(1)
    q = online(s).gather(1, a[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(q, goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 200 == 0:
        target.load_state_dict(online.state_dict())
    if step % 100 == 0:
        took = (time.perf_counter() - start) / 100 * 1000
        print(f"{step:4d} td {loss.item():.4f} eps {eps:.2f} | {took:.1f} ms", flush=True)
        start = time.perf_counter()
