"""Deep Q-learning of a catch-the-ball game, many games at once on the device."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
GAMES = 32 if CUDA else 4
SIDE = 84
STACK = 4
CAPACITY = 480_000 if CUDA else 200
BATCH = 256 if CUDA else 8
STEPS = 1000
SYNC_EVERY = 100
GAMMA = 0.97
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")


class Replay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.frames = torch.zeros(capacity, STACK + 1, SIDE, SIDE, dtype=torch.uint8, device=device)
        self.action = torch.zeros(capacity, dtype=torch.long, device=device)
        self.reward = torch.zeros(capacity, device=device)
        self.filled = 0

    def push(self, frames, action, reward):
        n = len(action)
        self.frames = torch.cat([self.frames[n:], frames])
        self.action = torch.cat([self.action[n:], action])
        self.reward = torch.cat([self.reward[n:], reward])
        self.filled = min(self.filled + n, self.capacity)

    def sample(self, count):
        i = self.capacity - 1 - torch.randint(self.filled, (count,), device=device)
        frames = self.frames[i].float().div_(255)
        return frames[:, :-1], self.action[i], self.reward[i], frames[:, 1:]


class Catch:
    def __init__(self, games):
        self.rows = torch.arange(SIDE, device=device).view(1, SIDE, 1)
        self.cols = torch.arange(SIDE, device=device).view(1, 1, SIDE)
        self.ball_x = torch.randint(SIDE, (games,), device=device)
        self.ball_y = torch.randint(SIDE, (games,), device=device)
        self.paddle = torch.full((games,), SIDE // 2, device=device)
        self.frames = self.draw().unsqueeze(1).repeat(1, STACK, 1, 1)

    def draw(self):
        ball = ((self.rows - self.ball_y.view(-1, 1, 1)).abs() < 3) & (
            (self.cols - self.ball_x.view(-1, 1, 1)).abs() < 3
        )
        bar = (self.rows >= SIDE - 3) & ((self.cols - self.paddle.view(-1, 1, 1)).abs() < 8)
        return (ball | bar).to(torch.uint8) * 255

    def step(self, action):
        self.paddle = (self.paddle + 4 * (action - 1)).clamp(0, SIDE - 1)
        self.ball_y = self.ball_y + 4
        down = self.ball_y >= SIDE - 3
        caught = (self.ball_x - self.paddle).abs() < 10
        reward = down.float() * (2 * caught.float() - 1)
        self.ball_y = torch.where(down, 0, self.ball_y)
        self.ball_x = torch.where(down, torch.randint_like(self.ball_x, SIDE), self.ball_x)
        both = torch.cat([self.frames, self.draw().unsqueeze(1)], 1)
        self.frames = both[:, 1:]
        return both, reward


class QNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(STACK, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, 3),
        )


def main():
    torch.manual_seed(0)
    env, replay = Catch(GAMES), Replay(CAPACITY)
    online, target = QNet().to(device), QNet().to(device)
    optimizer = torch.optim.Adam(online.parameters(), lr=2e-4, fused=CUDA)
    began = time.time()
    for step in range(1, STEPS + 1):
        with torch.no_grad():
            best = online(env.frames.float() / 255).argmax(1)
            explore = torch.rand(GAMES, device=device) < 0.1
            action = torch.where(explore, torch.randint_like(best, 3), best)
            frames, reward = env.step(action)
            replay.push(frames, action, reward)
            now, act, rew, then = replay.sample(BATCH)
            wanted = rew + GAMMA * target(then).amax(1)
        value = online(now).gather(1, act.view(-1, 1)).squeeze(1)
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % SYNC_EVERY == 0:
            target.load_state_dict(online.state_dict())
            print(f"step {step} loss {loss.item():.4f} {time.time() - began:.1f}s", flush=True)
        if LIMIT and step >= LIMIT:
            print("loss", loss.item())
            return


if __name__ == "__main__":
    main()
