import math

import torch
import torch.nn as nn

torch.autograd.set_detect_anomaly(True)


def mlp(sizes, norm=False):
    layers = []
    for i in range(len(sizes) - 2):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if norm:
            layers.append(nn.LayerNorm(sizes[i + 1]))
        layers.append(nn.LeakyReLU(0.2))
    layers.append(nn.Linear(sizes[-2], sizes[-1]))
    return nn.Sequential(*layers)


class RingData:
    def __init__(self, modes=8, radius=2.0, std=0.05):
        angles = torch.arange(modes) * 2 * math.pi / modes
        self.centers = radius * torch.stack([angles.cos(), angles.sin()], dim=1)
        self.std = std

    def sample(self, n):
        which = torch.randint(0, len(self.centers), (n,))
        return self.centers[which] + self.std * torch.randn(n, 2)


class GAN:
    def __init__(self, z=16, hidden=96, depth=10):
        self.z = z
        self.G = mlp([z] + [hidden] * depth + [2], norm=True)
        self.D = mlp([2] + [hidden] * depth + [1])
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.bce = nn.BCEWithLogitsLoss()

    def step_d(self, real):
        fake = self.G(torch.randn(len(real), self.z)).detach()
        loss = self.bce(self.D(real), torch.ones(len(real), 1)) + self.bce(self.D(fake), torch.zeros(len(real), 1))
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def step_g(self, n):
        loss = self.bce(self.D(self.G(torch.randn(n, self.z))), torch.ones(n, 1))
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    data, gan = RingData(), GAN()
    for it in range(80):
        d_loss = gan.step_d(data.sample(64))
        g_loss = gan.step_g(64)
        if it % 20 == 0:
            print(f"{it}: D {d_loss:.3f} G {g_loss:.3f}")
