"""Deterministic policy gradient for a fleet of simulated rovers seeking a goal."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

BEAMS = 40
OBS, ACT = BEAMS + 4, 2


class RoverFleet:
    """Rovers on a plane; an observation is range beams towards the goal and the velocity."""

    def __init__(self, n):
        self.n = n
        self.angles = torch.arange(BEAMS) * (2 * math.pi / BEAMS)
        self.pos = 4 * torch.rand(n, 2) - 2
        self.vel = torch.zeros(n, 2)
        self.goal = 4 * torch.rand(n, 2) - 2

    def observe(self):
        rel = self.goal - self.pos
        bearing = torch.atan2(rel[:, 1], rel[:, 0])
        beams = torch.exp(3 * (torch.cos(self.angles - bearing[:, None]) - 1)) / (1 + rel.norm(dim=1, keepdim=True))
        return torch.cat([beams, rel, self.vel], dim=1)

    def step(self, action):
        self.vel = 0.9 * self.vel + 0.1 * action
        self.pos = (self.pos + self.vel).clamp(-3, 3)
        dist = (self.goal - self.pos).norm(dim=1)
        done = dist < 0.1
        reward = -0.1 * dist + done.float() - 0.01 * action.pow(2).sum(1)
        nxt = self.observe()
        self.goal[done] = 4 * torch.rand(int(done.sum()), 2) - 2
        return nxt, reward, done.float()


class Replay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.fields = None

    def add(self, *transition):
        if self.fields is None:
            self.fields = list(transition)
        else:
            self.fields = [torch.cat([old, new])[-self.capacity :] for old, new in zip(self.fields, transition)]

    def sample(self, n):
        index = torch.randint(len(self.fields[0]), (n,))
        return [field[index] for field in self.fields]


def mlp(cin, cout, width=128):
    return nn.Sequential(nn.Linear(cin, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, cout))


class Agent:
    def __init__(self, gamma=0.97, tau=0.01):
        self.actor, self.critic = mlp(OBS, ACT), mlp(OBS + ACT, 1)
        self.actor_t, self.critic_t = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.opt_a = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.opt_c = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self.gamma, self.tau = gamma, tau

    @torch.no_grad()
    def act(self, obs, noise=0.2):
        return (torch.tanh(self.actor(obs)) + noise * torch.randn(len(obs), ACT)).clamp(-1, 1)

    def update(self, obs, act, rew, nxt, done):
        with torch.no_grad():
            nxt_q = self.critic_t(torch.cat([nxt, torch.tanh(self.actor_t(nxt))], 1)).squeeze(1)
            target = rew + self.gamma * (1 - done) * nxt_q
        critic_loss = F.mse_loss(self.critic(torch.cat([obs, act], 1)).squeeze(1), target)
        self.opt_c.zero_grad()
        critic_loss.backward()
        self.opt_c.step()
        actor_loss = -self.critic(torch.cat([obs, torch.tanh(self.actor(obs))], 1)).mean()
        self.opt_a.zero_grad()
        actor_loss.backward()
        self.opt_a.step()
        with torch.no_grad():
            for net, slow in ((self.actor, self.actor_t), (self.critic, self.critic_t)):
                for p, q in zip(net.parameters(), slow.parameters()):
                    q.lerp_(p, self.tau)
        return critic_loss.item()


def main(steps=2600, rovers=64, capacity=80_000):
    torch.manual_seed(9)
    fleet, agent, replay = RoverFleet(rovers), Agent(), Replay(capacity)
    scout = RoverFleet(capacity)
    first = scout.observe()
    wander = 2 * torch.rand(capacity, ACT) - 1
    nxt, rew, done = scout.step(wander)
    replay.add(first, wander, rew, nxt, done)
    for step in range(1, steps + 1):
        obs = fleet.observe()
        act = agent.act(obs)
        nxt, rew, done = fleet.step(act)
        replay.add(obs, act, rew, nxt, done)
        loss = agent.update(*replay.sample(256))
        if step % 400 == 0:
            print(f"{step:5d}  reward {rew.mean().item():.3f}  critic {loss:.4f}")


main()
