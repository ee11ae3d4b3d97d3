"""Vector-quantised autoencoder of image patches with an EMA codebook."""

import itertools
import time

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import nn
from torch.nn import functional as F


def patch_bank(size=8):
    rng, planes = np.random.default_rng(0), []
    for blur in (1.5, 3.0, 6.0):
        field = gaussian_filter(rng.standard_normal((3, 640, 640)), (0.4, blur, blur))
        img = torch.from_numpy(np.tanh(1.5 * field / field.std())).float() / 2
        tiles = img.unfold(1, size, size).unfold(2, size, size)
        planes.append(tiles.permute(1, 2, 0, 3, 4).reshape(-1, 3 * size * size))
    return torch.cat(planes)


def shuffled(bank, batch):
    for epoch in itertools.count():
        for part in torch.randperm(len(bank)).split(batch):
            if len(part) == batch:
                yield epoch, bank[part]


class Quantizer(nn.Module):
    def __init__(self, codes, dim, decay=0.98):
        super().__init__()
        self.decay = decay
        self.register_buffer("book", torch.randn(codes, dim))
        self.register_buffer("usage", torch.ones(codes))
        self.register_buffer("total", self.book.clone())

    @torch.no_grad()
    def nearest(self, z):
        diff = z[:, None, :] - self.book[None, :, :]
        return diff.pow(2).sum(-1).argmin(1)

    @torch.no_grad()
    def update(self, z, index):
        count = torch.bincount(index, minlength=len(self.book)).float()
        summed = torch.zeros_like(self.book).index_add_(0, index, z)
        self.usage.lerp_(count, 1 - self.decay)
        self.total.lerp_(summed, 1 - self.decay)
        self.book.copy_(self.total / (self.usage[:, None] + 1e-4))

    def forward(self, z):
        index = self.nearest(z)
        q = self.book[index]
        if self.training:
            self.update(z.detach(), index)
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit, index


class VQAutoencoder(nn.Module):
    def __init__(self, width=192, dim=48, codes=384, hidden=192):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, dim), nn.LayerNorm(dim))
        self.quant = Quantizer(codes, dim)
        self.dec = nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, width))

    def forward(self, x):
        q, commit, index = self.quant(self.enc(x))
        return self.dec(q), commit, index


def main(steps=450, batch=1024):
    torch.manual_seed(21)
    model = VQAutoencoder()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    mark = time.perf_counter()
    for step, (epoch, x) in enumerate(itertools.islice(shuffled(patch_bank(), batch), steps), 1):
        recon, commit, index = model(x)
        loss = F.mse_loss(recon, x) + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            took = time.perf_counter() - mark
            print(
                f"ep {epoch} step {step} loss {loss.item():.4f} codes {len(index.unique())} "
                f"{took / 30 * 1e3:.1f} ms/step",
                flush=True,
            )
            mark = time.perf_counter()


main()
