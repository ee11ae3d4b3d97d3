"""REINFORCE on a bank of simulated elevators, one update per batch of episodes."""

import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

FLOORS, ACTIONS = 10, 3


class Elevators:
    """`count` independent elevators, stepped together."""

    def __init__(self, count, rng):
        self.count, self.rng = count, rng

    def reset(self):
        self.floor = self.rng.integers(0, FLOORS, self.count)
        self.waiting = self.rng.random((self.count, FLOORS)) < 0.2
        return self.observe()

    def observe(self):
        place = np.eye(FLOORS, dtype=np.float32)[self.floor]
        return torch.from_numpy(np.concatenate([place, self.waiting.astype(np.float32)], 1))

    def step(self, action):
        self.floor = np.clip(self.floor + action - 1, 0, FLOORS - 1)
        rows = np.arange(self.count)
        served = self.waiting[rows, self.floor] & (action == 1)
        self.waiting[rows, self.floor] &= ~served
        self.waiting |= self.rng.random((self.count, FLOORS)) < 0.02
        reward = served * 1.0 - 0.02 * self.waiting.sum(1)
        return self.observe(), reward


class Policy(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * FLOORS, width), nn.Tanh(), nn.Linear(width, ACTIONS))

    def forward(self, x):
        return self.net(x)


def rollout(env, policy, horizon):
    observations, actions, rewards = [], [], []
    obs = env.reset()
    with torch.no_grad():
        for _ in range(horizon):
            action = Categorical(logits=policy(obs), validate_args=False).sample()
            observations.append(obs)
            actions.append(action)
            obs, reward = env.step(action.numpy())
            rewards.append(reward)
    return torch.stack(observations), torch.stack(actions), np.stack(rewards)


def returns_to_go(rewards, gamma):
    result = []
    for t in range(len(rewards)):
        result.append(sum(gamma**k * r for k, r in enumerate(rewards[t:])))
    return result


def main(updates=160, envs=8, horizon=240, gamma=0.98):
    torch.manual_seed(0)
    env = Elevators(envs, np.random.default_rng(0))
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    start = time.time()
    for update in range(1, updates + 1):
        obs, actions, rewards = rollout(env, policy, horizon)
        target = [returns_to_go(rewards[:, e].tolist(), gamma) for e in range(envs)]
        target = torch.tensor(target).T
        advantage = (target - target.mean()) / (target.std() + 1e-6)
        logp = Categorical(logits=policy(obs), validate_args=False).log_prob(actions)
        loss = -(logp * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 25 == 0:
            print(f"update {update} reward {rewards.sum(0).mean():.2f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
