"""A GAN on points of a ring: two optimizers, three backwards a step, losses that never settle."""

import math

import torch
from torch import nn
from torch.nn import functional

generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
discriminator = nn.Sequential(
    nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
)
of_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
of_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
bce = functional.binary_cross_entropy_with_logits
for _ in range(5000):
    angle = torch.rand(64) * 2 * math.pi
    real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)
    of_d.zero_grad()
    loss_real = bce(discriminator(real), torch.ones(64, 1))
    loss_real.backward()
    fake = generator(torch.randn(64, 8))
    loss_fake = bce(discriminator(fake.detach()), torch.zeros(64, 1))
    loss_fake.backward()
    of_d.step()
    of_g.zero_grad()
    bce(discriminator(fake), torch.ones(64, 1)).backward()
    of_g.step()
