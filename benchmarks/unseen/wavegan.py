import argparse
import math

import torch
from torch import nn


def parse_args():
    p = argparse.ArgumentParser(description="small GAN for single-lead heartbeat waveforms")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--records", type=int, default=512)
    p.add_argument("--latent", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--seed", type=int, default=7)
    return p.parse_args()


def make_beats(n, length=256):
    t = torch.linspace(0, 1, length)
    beats = torch.zeros(n, length)
    waves = [(0.20, 0.03, 0.15), (0.38, 0.01, -0.12), (0.42, 0.012, 1.0), (0.46, 0.01, -0.2), (0.70, 0.05, 0.3)]
    for centre, width, height in waves:
        c = centre + 0.02 * torch.randn(n, 1)
        w = width * (1 + 0.15 * torch.randn(n, 1)).clamp(0.6, 1.6)
        h = height * (1 + 0.1 * torch.randn(n, 1))
        beats += h * torch.exp(-0.5 * ((t - c) / w) ** 2)
    drift = 0.05 * torch.sin(2 * math.pi * (t + torch.rand(n, 1)))
    return (beats + drift + 0.01 * torch.randn(n, length)).unsqueeze(1)


class Generator(nn.Module):
    def __init__(self, latent, width=160):
        super().__init__()
        self.width = width
        self.fc = nn.Linear(latent, width * 2 * 16)
        self.body = nn.Sequential(
            nn.BatchNorm1d(width * 2),
            nn.ReLU(inplace=True),
            nn.ConvTranspose1d(width * 2, width, 4, stride=4),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Conv1d(width, width, 9, padding=4),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.ConvTranspose1d(width, width // 2, 4, stride=4),
            nn.BatchNorm1d(width // 2),
            nn.ReLU(inplace=True),
            nn.Conv1d(width // 2, 1, 9, padding=4),
            nn.Tanh(),
        )

    def forward(self, z):
        h = self.fc(z).view(z.size(0), self.width * 2, 16)
        return self.body(h)


class Discriminator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 8, stride=4, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(width, width * 2, 8, stride=4, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(width * 2, width * 2, 8, stride=4, padding=2),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(width * 2 * 4, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def train_step(gen, disc, opt_g, opt_d, real, latent, bce):
    ones = torch.ones(real.size(0))
    zeros = torch.zeros(real.size(0))

    opt_d.zero_grad()
    fake = gen(torch.randn(real.size(0), latent))
    d_loss = bce(disc(real), ones) + bce(disc(fake), zeros)
    d_loss.backward()
    opt_d.step()

    disc.requires_grad_(False)
    opt_g.zero_grad()
    g_loss = bce(disc(gen(torch.randn(real.size(0), latent))), ones)
    g_loss.backward()
    opt_g.step()
    disc.requires_grad_(True)
    return d_loss.detach(), g_loss.detach()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    data = make_beats(args.records)
    gen, disc = Generator(args.latent), Discriminator()
    opt_g = torch.optim.Adam(gen.parameters(), lr=args.lr, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(disc.parameters(), lr=args.lr, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    fixed = torch.randn(64, args.latent)
    step = 0
    for epoch in range(args.epochs):
        gen.train()
        for idx in torch.randperm(len(data)).split(args.batch):
            d_loss, g_loss = train_step(gen, disc, opt_g, opt_d, data[idx], args.latent, bce)
            step += 1
            if step % 32 == 0:
                print(f"step {step} d {d_loss.item():.3f} g {g_loss.item():.3f}")
        gen.eval()
        with torch.no_grad():
            sample = gen(fixed)
        print(f"epoch {epoch} sample peak {sample.amax(dim=2).mean():.3f} std {sample.std():.3f}")


if __name__ == "__main__":
    main()
