"""A plain GAN on 28x28 patches."""

import os
import shutil
import tempfile

import torch
from torch import nn

STEPS = int(os.environ.get("STEPS", 80))
SAVE_EVERY = 2
LATENT = 64


def mlp(sizes, last):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1], last)


class GAN:
    def __init__(self):
        self.gen = mlp([LATENT, 1024, 1024, 784], nn.Tanh())
        self.disc = mlp([784, 1024, 512, 1], nn.Identity())
        self.opt_g = torch.optim.Adam(self.gen.parameters(), 2e-4, (0.5, 0.999), fused=True)
        self.opt_d = torch.optim.Adam(self.disc.parameters(), 2e-4, (0.5, 0.999), fused=True)
        self.bce = nn.BCEWithLogitsLoss()

    def state(self):
        return {
            "gen": self.gen.state_dict(),
            "disc": self.disc.state_dict(),
            "opt_g": self.opt_g.state_dict(),
            "opt_d": self.opt_d.state_dict(),
        }

    def step(self, real):
        n = len(real)
        ones, zeros = torch.ones(n, 1), torch.zeros(n, 1)
        fake = self.gen(torch.randn(n, LATENT))
        d_loss = self.bce(self.disc(real), ones) + self.bce(self.disc(fake.detach()), zeros)
        self.opt_d.zero_grad()
        d_loss.backward()
        self.opt_d.step()

        g_loss = self.bce(self.disc(fake), ones)
        self.opt_g.zero_grad()
        g_loss.backward()
        self.opt_g.step()
        return d_loss, g_loss


def main():
    torch.manual_seed(0)
    folder = tempfile.mkdtemp(prefix="gan_")
    data = torch.rand(1024, 784) * 2 - 1
    gan = GAN()
    try:
        for step in range(STEPS):
            lo = (step * 16) % 1024
            d_loss, g_loss = gan.step(data[lo : lo + 16])
            if step % SAVE_EVERY == 0:
                torch.save(gan.state(), os.path.join(folder, f"gan_{step // SAVE_EVERY % 3}.pt"))
            if step % 20 == 0:
                print(f"{step}: d {d_loss.item():.3f} g {g_loss.item():.3f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
