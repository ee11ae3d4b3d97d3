import math
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

Transition = namedtuple("Transition", "state action reward next_state done priority")


class PoleEnv:
    """Cart-pole with the usual constants, one instance."""

    def reset(self):
        self.s = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return np.array(self.s, dtype=np.float32)

    def step(self, action):
        x, v, th, w = self.s
        force = 10.0 if action == 1 else -10.0
        c, s = math.cos(th), math.sin(th)
        tmp = (force + 0.05 * w * w * s) / 1.1
        acc_th = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        acc_x = tmp - 0.05 * acc_th * c / 1.1
        self.s = [x + 0.02 * v, v + 0.02 * acc_x, th + 0.02 * w, w + 0.02 * acc_th]
        self.t += 1
        fell = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21
        return np.array(self.s, dtype=np.float32), 1.0, fell or self.t >= 500


class ReplayMemory:
    def __init__(self, capacity, alpha=0.6):
        self.memory = deque(maxlen=capacity)
        self.alpha = alpha

    def push(self, *args):
        top = self.memory[-1].priority if self.memory else 1.0
        self.memory.append(Transition(*args, top))

    def sample(self, batch_size, beta):
        p = np.array([t.priority for t in self.memory]) ** self.alpha
        p /= p.sum()
        idx = np.random.choice(len(self.memory), batch_size, p=p)
        weights = (len(self.memory) * p[idx]) ** -beta
        return idx, [self.memory[i] for i in idx], weights / weights.max()

    def update(self, idx, errors):
        for i, e in zip(idx, errors):
            self.memory[i] = self.memory[i]._replace(priority=float(e) + 1e-5)

    def __len__(self):
        return len(self.memory)


class Agent:
    def __init__(self, hidden=256, lr=5e-4, gamma=0.99):
        self.q = self.build(hidden)
        self.target = self.build(hidden)
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=lr)
        self.gamma = gamma

    @staticmethod
    def build(hidden):
        return nn.Sequential(
            nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
        )

    @torch.no_grad()
    def act(self, state, eps):
        if random.random() < eps:
            return random.randrange(2)
        return int(self.q(torch.from_numpy(state)).argmax())

    def learn(self, memory, batch_size, beta):
        idx, batch, weights = memory.sample(batch_size, beta)
        s, a, r, s2, d, _ = zip(*batch)
        s, s2 = torch.from_numpy(np.stack(s)), torch.from_numpy(np.stack(s2))
        a = torch.tensor(a).unsqueeze(1)
        r, d = torch.tensor(r), torch.tensor(d, dtype=torch.float32)
        w = torch.from_numpy(weights).float()
        with torch.no_grad():
            best = self.q(s2).argmax(1, keepdim=True)
            goal = r + self.gamma * (1 - d) * self.target(s2).gather(1, best).squeeze(1)
        value = self.q(s).gather(1, a).squeeze(1)
        loss = (w * F.smooth_l1_loss(value, goal, reduction="none")).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        memory.update(idx, (goal - value.detach()).abs().numpy())
        return loss.detach()


def main(updates=200, warmup=50_000, batch_size=256, train_every=4):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    env, agent, memory = PoleEnv(), Agent(), ReplayMemory(100_000)
    state, score, scores, done_updates = env.reset(), 0.0, deque(maxlen=20), 0
    frame = 0
    while done_updates < updates:
        eps = 1.0 if frame < warmup else max(0.05, 0.6 - done_updates / updates)
        action = agent.act(state, eps)
        nxt, reward, done = env.step(action)
        memory.push(state, action, reward, nxt, done)
        state, score, frame = nxt, score + reward, frame + 1
        if done:
            scores.append(score)
            state, score = env.reset(), 0.0
        if frame >= warmup and frame % train_every == 0:
            loss = agent.learn(memory, batch_size, beta=0.4 + 0.6 * done_updates / updates)
            done_updates += 1
            if done_updates % 50 == 0:
                agent.target.load_state_dict(agent.q.state_dict())
                print(f"update {done_updates} loss {loss.item():.4f} return {np.mean(scores):.1f} buffer {len(memory)}")


if __name__ == "__main__":
    main()
