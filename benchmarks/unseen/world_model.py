"""Learn the dynamics of a toy environment from its own experience."""

import os

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 80))
OBS = 512
ACT = 8
ENVS = 640


class Environment:
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.a = torch.randn(OBS, generator=g) * 0.1
        self.b = torch.randn(ACT, OBS, generator=g) * 0.3
        self.obs = torch.randn(ENVS, OBS, generator=g)

    def step(self, action):
        before = self.obs
        self.obs = torch.tanh(before + self.a + action @ self.b)
        return before, self.obs


class Memory:
    def __init__(self):
        self.obs = torch.empty(0, OBS)
        self.action = torch.empty(0, ACT)
        self.target = torch.empty(0, OBS)

    def push(self, obs, action, target):
        self.obs = torch.cat([self.obs, obs])
        self.action = torch.cat([self.action, action])
        self.target = torch.cat([self.target, target])

    def sample(self, n):
        i = torch.randint(0, len(self.obs), (n,))
        return self.obs[i], self.action[i], self.target[i]


class Dynamics(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(OBS + ACT, hidden), nn.SiLU(), nn.Linear(hidden, OBS))

    def forward(self, obs, action):
        return obs + self.net(torch.cat([obs, action], -1))


def main():
    torch.manual_seed(0)
    env, memory, model = Environment(), Memory(), Dynamics()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for step in range(STEPS):
        with torch.no_grad():
            action = torch.rand(ENVS, ACT) * 2 - 1
            before, after = env.step(action)
            memory.push(before, action, after)
        obs, act, target = memory.sample(256)
        loss = nn.functional.mse_loss(model(obs, act), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5f} memory {len(memory.obs)}")


if __name__ == "__main__":
    main()
