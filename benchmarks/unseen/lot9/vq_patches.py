"""Vector-quantised autoencoder on 4x4 patches of the scikit-learn digits."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def load_images():
    images = load_digits().images.astype(np.float32) / 16.0
    images = torch.from_numpy(images).unsqueeze(1)
    return F.interpolate(images, size=(16, 16), mode="bilinear", align_corners=False)


class Codebook(nn.Module):
    def __init__(self, n_codes, dim, beta=0.25):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(n_codes, dim) * 0.1)
        self.beta = beta

    def assign(self, z):
        with torch.no_grad():
            diff = z.unsqueeze(1) - self.codes.unsqueeze(0)
            dist = (diff**2).sum(dim=-1)
            return dist.argmin(dim=1)

    def forward(self, z):
        index = self.assign(z)
        quantised = F.embedding(index, self.codes)
        loss = F.mse_loss(quantised, z.detach()) + self.beta * F.mse_loss(z, quantised.detach())
        return z + (quantised - z).detach(), loss, index


class PatchVQ(nn.Module):
    def __init__(self, dim=64, n_codes=256):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, dim, 1),
        )
        self.codebook = Codebook(n_codes, dim)
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, 64, 3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 1, 4, stride=4),
        )

    def forward(self, x):
        z = self.encoder(x)
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c)
        quantised, vq_loss, index = self.codebook(flat)
        quantised = quantised.view(b, h, w, c).permute(0, 3, 1, 2)
        return self.decoder(quantised), vq_loss, index


def main(epochs=7, batch_size=64, lr=2e-3):
    torch.manual_seed(0)
    images = load_images()
    model = PatchVQ()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    for epoch in range(epochs):
        order = torch.randperm(len(images))
        used = set()
        for start in range(0, len(order) - batch_size + 1, batch_size):
            batch = images[order[start : start + batch_size]]
            recon, vq_loss, index = model(batch)
            recon_loss = F.mse_loss(recon, batch)
            loss = recon_loss + vq_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        used.update(index.tolist())
        print(f"epoch {epoch:2d} recon {recon_loss.item():.4f} vq {vq_loss.item():.4f} codes {len(used)}")


if __name__ == "__main__":
    main()
