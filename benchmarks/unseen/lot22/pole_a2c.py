"""Advantage actor-critic on a batch of cart-pole simulations written in numpy."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

UPDATES = int(os.environ.get("STEPS", 900))
ENVS, HORIZON = 32, 24
GAMMA, LAMBDA = 0.99, 0.95


class CartPoles:
    def __init__(self, count, seed=0):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (count, 4))
        self.age = np.zeros(count, dtype=np.int64)
        self.finished = []

    def observe(self):
        return torch.from_numpy(self.state.astype(np.float32))

    def step(self, action):
        x, v, a, w = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        cos, sin = np.cos(a), np.sin(a)
        temp = (force + 0.05 * w * w * sin) / 1.1
        aacc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        vacc = temp - 0.05 * aacc * cos / 1.1
        self.state = np.stack([x + 0.02 * v, v + 0.02 * vacc, a + 0.02 * w, w + 0.02 * aacc], 1)
        self.age += 1
        done = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21) | (self.age >= 500)
        if done.any():
            self.finished.extend(self.age[done].tolist())
            self.state[done] = self.rng.uniform(-0.05, 0.05, (int(done.sum()), 4))
            self.age[done] = 0
        return np.ones(len(done), dtype=np.float32), done.astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.policy = nn.Linear(128, 2)
        self.value = nn.Linear(128, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.policy(h), self.value(h).squeeze(-1)


@torch.no_grad()
def rollout(envs, model):
    obs, actions, values, rewards, dones = [], [], [], [], []
    for _ in range(HORIZON):
        o = envs.observe()
        logits, value = model(o)
        action = (torch.rand(ENVS) < torch.sigmoid(logits[:, 1] - logits[:, 0])).long()
        reward, done = envs.step(action.numpy())
        obs.append(o)
        actions.append(action)
        values.append(value)
        rewards.append(torch.from_numpy(reward))
        dones.append(torch.from_numpy(done))
    values.append(model(envs.observe())[1])
    return [torch.stack(s) for s in (obs, actions, values, rewards, dones)]


def advantages(rewards, values, dones):
    adv = torch.zeros_like(rewards)
    for env in range(rewards.shape[1]):
        last = 0.0
        for t in reversed(range(rewards.shape[0])):
            alive = 1.0 - dones[t, env]
            delta = rewards[t, env] + GAMMA * values[t + 1, env] * alive - values[t, env]
            last = delta + GAMMA * LAMBDA * alive * last
            adv[t, env] = last
    return adv


def main():
    torch.manual_seed(0)
    envs, model = CartPoles(ENVS), ActorCritic()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=7e-4, alpha=0.99, eps=1e-5)
    begin = time.perf_counter()
    for update in range(1, UPDATES + 1):
        obs, actions, values, rewards, dones = rollout(envs, model)
        adv = advantages(rewards, values, dones)
        returns = adv + values[:-1]
        logits, value = model(obs)
        dist = Categorical(logits=logits, validate_args=False)
        policy_loss = -(dist.log_prob(actions) * adv).mean()
        value_loss = nn.functional.mse_loss(value, returns)
        loss = policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if update % 100 == 0:
            print(f"update {update}  mean episode {np.mean(envs.finished[-100:]):.1f}  value loss {value_loss.item():.3f}")
    took = time.perf_counter() - begin
    print(f"{UPDATES} steps, {took / UPDATES * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
