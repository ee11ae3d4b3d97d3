"""Hinge GAN for 8x8 digits with a class-conditional generator."""

import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

NOISE, CLASSES = 32, 10


class Generator(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.label = nn.Embedding(CLASSES, 32)
        self.net = nn.Sequential(
            nn.Linear(NOISE + 32, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 64),
            nn.Tanh(),
        )

    def forward(self, z, y):
        return self.net(torch.cat([z, self.label(y)], 1))


class Critic(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
        )
        self.score = nn.Linear(width, 1)
        self.label = nn.Embedding(CLASSES, width)
        nn.init.normal_(self.label.weight, std=0.05)

    def forward(self, x, y):
        h = self.body(x)
        return self.score(h).squeeze(1) + (h * self.label(y)).sum(1)


class Adversary:
    """Owns both networks, their optimizers and one alternating update."""

    def __init__(self, batch=320, lr_g=2e-4, lr_d=4e-4):
        self.batch = batch
        self.gen, self.critic = Generator(), Critic()
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=lr_g, betas=(0.0, 0.9), fused=True)
        self.opt_d = torch.optim.Adam(self.critic.parameters(), lr=lr_d, betas=(0.0, 0.9), fused=True)

    def sample(self, n):
        y = torch.randint(CLASSES, (n,))
        return self.gen(torch.randn(n, NOISE), y), y

    def critic_update(self, real, labels):
        with torch.no_grad():
            fake, wrong = self.sample(self.batch)
        loss = F.relu(1 - self.critic(real, labels)).mean() + F.relu(1 + self.critic(fake, wrong)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def generator_update(self):
        self.critic.requires_grad_(False)
        fake, y = self.sample(self.batch)
        loss = -self.critic(fake, y).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.detach()


def main(steps=500, report=100):
    torch.manual_seed(0)
    raw = load_digits()
    pixels = torch.tensor(raw.data / 8.0 - 1.0, dtype=torch.float32)
    target = torch.tensor(raw.target)
    game = Adversary()
    totals = torch.zeros(2)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        pick = torch.randint(len(pixels), (game.batch,))
        real = pixels[pick] + 0.05 * torch.randn(game.batch, 64)
        totals[0] += game.critic_update(real, target[pick])
        totals[1] += game.generator_update()
        if step % report == 0:
            d, g = (totals / report).tolist()
            print(f"step {step} critic {d:.3f} generator {g:.3f}", flush=True)
            totals.zero_()
    print(f"{1000 * (time.perf_counter() - start) / steps:.2f} ms/step")


if __name__ == "__main__":
    main()
