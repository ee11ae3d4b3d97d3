# planted: none (healthy) (bounded replay buffer on the device: grows for 700 of 2200 steps (CPU), then level)
# dominates at the peak: held by the script: 316 of 327 MB in the replay memory (deque of named tuples, maxlen
#     700)
# held by: memory (deque) of main, as intended
# mend: none needed; no leak must be reported after it is full
# measured: CPU: after steps 12, 135, 259, 324, then 324 MB to the end
# on a GPU: 600 x 1.8 MB = 1.1 GB (not run)
"""Double DQN on a tiny pixel game (catch the falling block); transitions live on the training device."""
import collections
import copy
import os
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LARGE = DEVICE.type == "cuda"
SIDE = 84
ENVS = 32 if LARGE else 8
CAPACITY = 600 if LARGE else 700
STEPS = int(os.environ.get("STEPS", 2500 if LARGE else 2200))
BATCH = 8 if LARGE else 2
GAMMA = 0.97

Transition = collections.namedtuple("Transition", "frame action reward following done")


class Catch:
    """A row of games advanced together, drawn straight into frames."""

    def __init__(self, n):
        self.n = n
        self.reset(torch.arange(n))

    def reset(self, which):
        if not hasattr(self, "x"):
            self.x, self.y, self.paddle = (torch.zeros(self.n, dtype=torch.long) for _ in range(3))
        self.x[which] = torch.randint(0, SIDE, (len(which),))
        self.y[which] = 0
        self.paddle[which] = SIDE // 2

    def frames(self):
        image = torch.zeros(self.n, 1, SIDE, SIDE)
        rows = torch.arange(self.n)
        for d in range(-2, 3):
            image[rows, 0, self.y.clamp(0, SIDE - 1), (self.x + d).clamp(0, SIDE - 1)] = 1
            image[rows, 0, SIDE - 1, (self.paddle + 2 * d).clamp(0, SIDE - 1)] = 1
        return image.to(DEVICE)

    def step(self, action):
        self.paddle = (self.paddle + 6 * (action.cpu() - 1)).clamp(0, SIDE - 1)
        self.y += 6
        done = self.y >= SIDE - 1
        reward = torch.where(done, (self.x - self.paddle).abs().lt(7).float() * 2 - 1, torch.zeros(self.n))
        following = self.frames()
        self.reset(done.nonzero().flatten())
        return reward.to(DEVICE), following, done.float().to(DEVICE)


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten())
        self.value = nn.Sequential(nn.Linear(32 * 81, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(self, x):
        return self.value(self.conv(x))


def learn(q, target, optimizer, memory):
    batch = Transition(*(torch.cat(column) for column in zip(*random.sample(memory, BATCH))))
    with torch.no_grad():
        best = q(batch.following).argmax(1, keepdim=True)
        goal = batch.reward + GAMMA * (1 - batch.done) * target(batch.following).gather(1, best).squeeze(1)
    loss = F.smooth_l1_loss(q(batch.frame).gather(1, batch.action[:, None]).squeeze(1), goal)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    random.seed(0)
    q = QNet().to(DEVICE)
    target = copy.deepcopy(q).requires_grad_(False)
    optimizer = torch.optim.Adam(q.parameters(), lr=5e-4)
    memory = collections.deque(maxlen=CAPACITY)
    games = Catch(ENVS)
    frame, caught, begin = games.frames(), 0.0, time.perf_counter()
    for step in range(1, STEPS + 1):
        explore = max(0.05, 1 - 2 * step / STEPS)
        with torch.no_grad():
            action = q(frame).argmax(1)
        action = torch.where(torch.rand(ENVS, device=DEVICE) < explore, torch.randint(0, 3, (ENVS,), device=DEVICE), action)
        reward, following, done = games.step(action)
        memory.append(Transition(frame, action, reward, following, done))
        frame = torch.where(done.view(-1, 1, 1, 1) > 0, games.frames(), following)
        caught += reward.sum().item()
        loss = learn(q, target, optimizer, memory) if len(memory) >= 4 * BATCH else 0.0
        if step % 100 == 0:
            target.load_state_dict(q.state_dict())
            print(f"step {step} loss {loss:.4f} reward {caught:.0f} {step / (time.perf_counter() - begin):.1f} it/s", flush=True)
            caught = 0.0


if __name__ == "__main__":
    main()
