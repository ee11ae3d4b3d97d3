"""Value learning on a toy balancing task with a prioritised replay memory."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

OBS, ACTIONS, GAMMA = 24, 6, 0.97


class PriorityMemory:
    def __init__(self, capacity, alpha=0.6, beta=0.4):
        self.obs = np.zeros((capacity, OBS), np.float32)
        self.next_obs = np.zeros((capacity, OBS), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.priority = np.zeros(capacity, np.float64)
        self.capacity, self.alpha, self.beta = capacity, alpha, beta
        self.pos = self.size = 0

    def add(self, obs, action, reward, next_obs):
        n = len(action)
        idx = (self.pos + np.arange(n)) % self.capacity
        self.obs[idx], self.next_obs[idx] = obs, next_obs
        self.action[idx], self.reward[idx] = action, reward
        self.priority[idx] = 1.0
        self.pos = int((self.pos + n) % self.capacity)
        self.size = min(self.size + n, self.capacity)

    def sample(self, batch_size):
        p = self.priority[: self.size] ** self.alpha
        p /= p.sum()
        idx = np.random.choice(self.size, batch_size, p=p)
        weight = (self.size * p[idx]) ** -self.beta
        weight = (weight / weight.max()).astype(np.float32)
        batch = (self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx], weight)
        return idx, [torch.from_numpy(a) for a in batch]

    def update(self, idx, td_error):
        self.priority[idx] = np.abs(td_error) + 1e-3


class ToyEnv:
    """A batch of independent linear systems, pushed by one of six actuators."""

    def __init__(self, n_envs, seed=0):
        rng = np.random.default_rng(seed)
        self.a = np.eye(OBS, dtype=np.float32) * 0.98
        self.a += rng.normal(0, 0.01, (OBS, OBS)).astype(np.float32)
        self.b = rng.normal(0, 0.3, (ACTIONS, OBS)).astype(np.float32)
        self.state = rng.normal(0, 1, (n_envs, OBS)).astype(np.float32)
        self.rng = rng

    def step(self, action):
        noise = self.rng.normal(0, 0.05, self.state.shape).astype(np.float32)
        self.state = np.clip(self.state @ self.a + self.b[action] + noise, -4, 4)
        return self.state.copy(), -np.square(self.state).mean(axis=1)


def make_net():
    return nn.Sequential(nn.Linear(OBS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, ACTIONS))


def main(steps=300, batch_size=256):
    np.random.seed(0)
    torch.manual_seed(0)
    env = ToyEnv(n_envs=256)
    memory = PriorityMemory(capacity=1_200_000)
    for _ in range(4700):
        obs, action = env.state, np.random.randint(ACTIONS, size=256)
        next_obs, reward = env.step(action)
        memory.add(obs, action, reward, next_obs)

    net, target = make_net(), make_net()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
    for step in range(1, steps + 1):
        obs = env.state
        with torch.no_grad():
            action = net(torch.from_numpy(obs)).argmax(1).numpy()
        next_obs, reward = env.step(action)
        memory.add(obs, action, reward, next_obs)

        idx, (o, a, r, o2, w) = memory.sample(batch_size)
        with torch.no_grad():
            goal = r + GAMMA * target(o2).max(1).values
        q = net(o).gather(1, a[:, None]).squeeze(1)
        loss = (w * F.smooth_l1_loss(q, goal, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.update(idx, (goal - q).detach().numpy())
        if step % 100 == 0:
            target.load_state_dict(net.state_dict())
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} reward {reward.mean():.3f}")


if __name__ == "__main__":
    main()
