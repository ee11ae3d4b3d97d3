import argparse

import torch
from torch import nn
from torch.distributions import Normal


class ReachBatch:
    """Point masses that must reach a goal in a box; all environments advance together."""

    def __init__(self, n, dims=4, horizon=100):
        self.n, self.dims, self.horizon = n, dims, horizon
        self.obs_dim = 3 * dims
        self.pos = torch.empty(n, dims)
        self.vel = torch.empty(n, dims)
        self.goal = torch.empty(n, dims)
        self.age = torch.randint(horizon, (n,))
        self._reset(torch.ones(n, dtype=torch.bool))

    def _reset(self, mask):
        m = mask.unsqueeze(1)
        self.pos = torch.where(m, torch.rand_like(self.pos) * 2 - 1, self.pos)
        self.goal = torch.where(m, torch.rand_like(self.goal) * 2 - 1, self.goal)
        self.vel = torch.where(m, torch.zeros_like(self.vel), self.vel)

    def observe(self):
        return torch.cat([self.pos, self.vel, self.goal - self.pos], dim=1)

    def step(self, action):
        self.vel = 0.9 * self.vel + 0.1 * action.clamp(-1, 1)
        self.pos = (self.pos + 0.2 * self.vel).clamp(-1, 1)
        dist = (self.goal - self.pos).norm(dim=1)
        self.age += 1
        done = (dist < 0.1) | (self.age >= self.horizon)
        reward = -0.1 * dist + (dist < 0.1).float()
        self.age = torch.where(done, torch.zeros_like(self.age), self.age)
        self._reset(done)
        return self.observe(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, obs, act, width):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.mu = nn.Linear(width, act)
        self.value = nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.full((act,), -0.5))

    def forward(self, obs):
        h = self.trunk(obs)
        return Normal(self.mu(h), self.log_std.exp(), validate_args=False), self.value(h).squeeze(-1)


@torch.no_grad()
def rollout(env, policy, obs, length):
    out = {k: [] for k in ("obs", "act", "logp", "val", "rew", "done")}
    for _ in range(length):
        pi, value = policy(obs)
        action = pi.sample()
        nxt, reward, done = env.step(action)
        for k, v in zip(out, (obs, action, pi.log_prob(action).sum(-1), value, reward, done)):
            out[k].append(v)
        obs = nxt
    data = {k: torch.stack(v) for k, v in out.items()}
    return data, obs, policy(obs)[1]


def advantages(data, last, gamma=0.98, lam=0.95):
    adv, run, nxt = torch.zeros_like(data["rew"]), torch.zeros_like(last), last
    for t in range(len(adv) - 1, -1, -1):
        live = 1 - data["done"][t]
        delta = data["rew"][t] + gamma * live * nxt - data["val"][t]
        run = delta + gamma * lam * live * run
        adv[t], nxt = run, data["val"][t]
    return adv, adv + data["val"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=5)
    p.add_argument("--envs", type=int, default=256)
    p.add_argument("--length", type=int, default=32)
    p.add_argument("--passes", type=int, default=4)
    p.add_argument("--minibatch", type=int, default=1024)
    p.add_argument("--width", type=int, default=384)
    a = p.parse_args()
    torch.manual_seed(2)
    env = ReachBatch(a.envs)
    policy = ActorCritic(env.obs_dim, env.dims, a.width)
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    obs = env.observe()
    for it in range(a.iterations):
        data, obs, last = rollout(env, policy, obs, a.length)
        adv, ret = (v.flatten() for v in advantages(data, last))
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        flat = {k: v.flatten(0, 1) for k, v in data.items()}
        for _ in range(a.passes):
            for idx in torch.randperm(len(adv)).split(a.minibatch):
                pi, value = policy(flat["obs"][idx])
                ratio = (pi.log_prob(flat["act"][idx]).sum(-1) - flat["logp"][idx]).exp()
                gain = torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx]).mean()
                loss = -gain + 0.5 * (value - ret[idx]).pow(2).mean() - 0.003 * pi.entropy().sum(-1).mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                opt.step()
        print(f"iter {it} reward {data['rew'].mean():.4f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
