import copy
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
OBS = 32
ACT = 6
HISTORY = 1_000_000 if ON_GPU else 20_000
BATCH = 1024 if ON_GPU else 64
UPDATES = 600
GAMMA, TAU = 0.99, 0.005
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class PlantHistory:
    def __init__(self, size):
        rng = np.random.default_rng(1)
        self.size = size
        self.obs = rng.standard_normal((size, OBS), dtype=np.float32)
        self.act = np.tanh(rng.standard_normal((size, ACT), dtype=np.float32))
        self.next_obs = 0.9 * self.obs
        self.next_obs[:, :ACT] += 0.1 * self.act
        self.reward = -np.square(self.next_obs).mean(1, keepdims=True)

    def sample(self, batch):
        rows = np.random.choice(self.size, batch, replace=False)
        parts = (self.obs[rows], self.act[rows], self.reward[rows], self.next_obs[rows])
        return [torch.from_numpy(p).to(device) for p in parts]


def mlp(inputs, outputs, hidden=512):
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1 = mlp(OBS + ACT, 1)
        self.q2 = mlp(OBS + ACT, 1)

    def forward(self, obs, act):
        x = torch.cat([obs, act], -1)
        return self.q1(x), self.q2(x)


@torch.no_grad()
def follow(target, online):
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), TAU)


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    history = PlantHistory(HISTORY)
    actor = mlp(OBS, ACT).to(device)
    critic = Critic().to(device)
    actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-4, fused=ON_GPU)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=3e-4, fused=ON_GPU)

    for update in range(1, UPDATES + 1):
        obs, act, reward, next_obs = history.sample(BATCH)
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(act)).clamp(-0.5, 0.5)
            next_act = (torch.tanh(actor_target(next_obs)) + noise).clamp(-1, 1)
            goal = reward + GAMMA * torch.minimum(*critic_target(next_obs, next_act))
        q1, q2 = critic(obs, act)
        critic_loss = F.mse_loss(q1, goal) + F.mse_loss(q2, goal)
        critic_opt.zero_grad(set_to_none=True)
        critic_loss.backward()
        critic_opt.step()

        if update % 2 == 0:
            pi = torch.tanh(actor(obs))
            q = critic(obs, pi)[0]
            actor_loss = F.mse_loss(pi, act) - 2.5 * q.mean() / q.abs().mean().detach()
            actor_opt.zero_grad(set_to_none=True)
            actor_loss.backward()
            actor_opt.step()
            follow(actor_target, actor)
            follow(critic_target, critic)
        if update % 100 == 0:
            print(f"update {update} critic loss {critic_loss.item():.4f}", flush=True)
        if update == LIMIT:
            return


if __name__ == "__main__":
    main()
