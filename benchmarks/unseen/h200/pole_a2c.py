"""Advantage actor-critic on a set of simulated cart-poles."""

import math
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

GPU = torch.cuda.is_available()
ENVS = 16
HORIZON = 8
WIDTH = 512 if GPU else 32
UPDATES = 400
GAMMA = 0.99
ENTROPY = 0.01
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class CartPole:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.reset()

    def reset(self):
        self.state = [self.rng.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return self.state

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        temp = (force + 0.05 * spin * spin * sin) / 1.1
        acc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        self.state = [x + 0.02 * v, v + 0.02 * (temp - 0.05 * acc * cos / 1.1), angle + 0.02 * spin, spin + 0.02 * acc]
        self.t += 1
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21 or self.t >= 500
        return (self.reset() if done else self.state), 1.0, done


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )
        self.policy = nn.Linear(WIDTH, 2)
        self.value = nn.Linear(WIDTH, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.policy(h), self.value(h).squeeze(-1)


@torch.no_grad()
def choose_actions(model, obs, device):
    actions = []
    for row in obs:
        x = torch.as_tensor(row, dtype=torch.float32, device=device)
        logits, _ = model(x)
        actions.append(Categorical(logits=logits, validate_args=False).sample().item())
    return actions


def rollout(model, envs, obs, device):
    seen, acts = np.zeros((HORIZON, ENVS, 4), np.float32), np.zeros((HORIZON, ENVS), np.int64)
    rewards, alive = np.zeros((HORIZON, ENVS), np.float32), np.ones((HORIZON, ENVS), np.float32)
    for t in range(HORIZON):
        actions = choose_actions(model, obs, device)
        seen[t], acts[t] = obs, actions
        for i, env in enumerate(envs):
            obs[i], rewards[t, i], done = env.step(actions[i])
            alive[t, i] = 1.0 - done
    return seen, acts, rewards, alive


def update(model, optimizer, batch, obs, device):
    seen, acts, rewards, alive = batch
    with torch.no_grad():
        last = model(torch.as_tensor(obs, device=device))[1].cpu().numpy()
    returns = np.zeros_like(rewards)
    for t in reversed(range(HORIZON)):
        last = returns[t] = rewards[t] + GAMMA * alive[t] * last
    logits, values = model(torch.as_tensor(seen, device=device).flatten(0, 1))
    target = torch.as_tensor(returns, device=device).flatten()
    dist = Categorical(logits=logits, validate_args=False)
    advantage = (target - values).detach()
    gain = dist.log_prob(torch.as_tensor(acts, device=device).flatten()) * advantage
    loss = F.mse_loss(values, target) * 0.5 - gain.mean() - ENTROPY * dist.entropy().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    model = ActorCritic().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=GPU)
    envs = [CartPole(seed) for seed in range(ENVS)]
    obs = np.array([env.reset() for env in envs], np.float32)
    for n in range(UPDATES):
        batch = rollout(model, envs, obs, device)
        loss = update(model, optimizer, batch, obs, device)
        if n % 50 == 0:
            print(f"update {n} loss {loss.item():.4f} alive {batch[3].mean():.3f}")
        if LIMIT and n + 1 >= LIMIT:
            return


if __name__ == "__main__":
    main()
