"""Spectrally normalised GAN on the scikit-learn digits (hinge loss)."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class SNLinear(nn.Linear):
    def forward(self, x):
        sigma = torch.linalg.matrix_norm(self.weight, ord=2)
        return F.linear(x, self.weight / sigma, self.bias)


class Generator(nn.Module):
    def __init__(self, latent, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 64), nn.Tanh()
        )

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(
            SNLinear(64, hidden), nn.LeakyReLU(0.2), SNLinear(hidden, hidden), nn.LeakyReLU(0.2), SNLinear(hidden, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def train_critic(critic, optimizer, real, fake):
    scores = critic(torch.cat([real, fake.detach()]))
    on_real, on_fake = scores.chunk(2)
    loss = F.relu(1 - on_real).mean() + F.relu(1 + on_fake).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def train_generator(critic, optimizer, fake):
    loss = -critic(fake).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=18)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--latent", type=int, default=32)
    p.add_argument("--hidden", type=int, default=352)
    args = p.parse_args()

    torch.manual_seed(0)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1
    gen, critic = Generator(args.latent, 2 * args.hidden), Critic(args.hidden)
    gen_opt = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.0, 0.9))
    critic_opt = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.9))
    for epoch in range(args.epochs):
        for real in images[torch.randperm(len(images))].split(args.batch_size):
            fake = gen(torch.randn(len(real), args.latent))
            critic_loss = train_critic(critic, critic_opt, real, fake)
            gen_loss = train_generator(critic, gen_opt, fake)
        if epoch % 4 == 0:
            print(f"epoch {epoch} critic {critic_loss.item():.3f} generator {gen_loss.item():.3f}")


if __name__ == "__main__":
    main()
