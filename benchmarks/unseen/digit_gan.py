import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_generator(z_dim, width):
    return nn.Sequential(
        nn.Linear(z_dim, width * 4 * 4),
        nn.Unflatten(1, (width, 4, 4)),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(width, width // 2, 3, padding=1, bias=False),
        nn.BatchNorm2d(width // 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(width // 2, 1, 3, padding=1),
        nn.Tanh(),
    )


def build_discriminator(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(width, width * 2, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Flatten(),
        nn.Linear(width * 2 * 4 * 4, 1),
    )


class GANTrainer:
    def __init__(self, z_dim=64, g_width=80, d_width=24, lr=2e-4):
        self.z_dim = z_dim
        self.G = build_generator(z_dim, g_width)
        self.D = build_discriminator(d_width)
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=lr, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=lr, betas=(0.5, 0.999))
        self.criterion = nn.BCEWithLogitsLoss()
        self.fixed_z = torch.randn(16, z_dim)
        self.step = 0

    def train_step(self, real):
        n = real.size(0)
        ones, zeros = torch.ones(n, 1), torch.zeros(n, 1)

        fake = self.G(torch.randn(n, self.z_dim))
        self.opt_d.zero_grad()
        loss_d = self.criterion(self.D(real), ones) + self.criterion(self.D(fake), zeros)
        loss_d.backward()
        self.opt_d.step()

        self.opt_g.zero_grad()
        fake = self.G(torch.randn(n, self.z_dim))
        loss_g = self.criterion(self.D(fake), ones)
        loss_g.backward()
        self.opt_g.step()
        self.step += 1
        return loss_d, loss_g

    @torch.no_grad()
    def preview(self):
        self.G.eval()
        grid = self.G(self.fixed_z)
        self.G.train()
        return grid.mean().item(), grid.std().item()

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for (real,) in loader:
                loss_d, loss_g = self.train_step(real)
                if self.step % 50 == 0:
                    print(f"[{self.step}] D {loss_d.item():.3f} G {loss_g.item():.3f}")
            mean, std = self.preview()
            print(f"epoch {epoch}: sample mean {mean:.3f} std {std:.3f}")


def get_loader(batch_size):
    images = load_digits().images.astype(np.float32) / 8.0 - 1.0
    x = torch.from_numpy(images)[:, None]
    x = nn.functional.interpolate(x, size=16, mode="bilinear", align_corners=False)
    return DataLoader(TensorDataset(x), batch_size=batch_size, shuffle=True, drop_last=True)


if __name__ == "__main__":
    torch.manual_seed(42)
    GANTrainer().fit(get_loader(32), epochs=3)
