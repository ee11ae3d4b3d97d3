"""Variational autoencoder of gene counts in single cells, Poisson likelihood."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F


class Settings:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps = int(os.environ.get("STEPS", 2000))
    cells, genes, batch, wide, narrow, latent = (
        (60_000, 16_384, 4096, 6144, 3072, 128) if torch.cuda.is_available() else (500, 512, 64, 128, 64, 16)
    )
    lr = 1e-4
    report = 200


def simulate(s, types=40, chunk=5000):
    """Counts of cells of some types with their own expression programs, kept as bytes on the device."""
    programs = torch.softmax(2.0 * torch.randn(types, s.genes, device=s.device), -1)
    counts = torch.empty(s.cells, s.genes, dtype=torch.uint8, device=s.device)
    for first in range(0, s.cells, chunk):
        n = min(chunk, s.cells - first)
        mixture = torch.softmax(4.0 * torch.randn(n, types, device=s.device), -1)
        depth = s.genes * torch.exp(0.3 * torch.randn(n, 1, device=s.device))
        counts[first : first + n] = torch.poisson(depth * (mixture @ programs)).clamp(max=255).byte()
    return counts


def dense(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.SiLU())


class CellVAE(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.encoder = nn.Sequential(dense(s.genes, s.wide), dense(s.wide, s.narrow), nn.Linear(s.narrow, 2 * s.latent))
        self.decoder = nn.Sequential(dense(s.latent, s.narrow), dense(s.narrow, s.wide), nn.Linear(s.wide, s.genes))

    def forward(self, x):
        mean, logvar = self.encoder(x).float().chunk(2, -1)
        z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
        return self.decoder(z), kl


class Trainer:
    def __init__(self, settings):
        self.s = settings
        torch.manual_seed(12)
        torch.set_float32_matmul_precision("high")
        self.counts = simulate(settings)
        self.model = CellVAE(settings).to(settings.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr, fused=True)

    def batch(self):
        rows = torch.randint(self.s.cells, (self.s.batch,), device=self.s.device)
        return self.counts[rows].to(torch.bfloat16)

    def step(self, counts, beta):
        x = torch.log1p(counts)
        with torch.autocast(self.s.device, torch.bfloat16):
            lograte, kl = self.model(x)
        nll = F.poisson_nll_loss(lograte, counts, log_input=True, reduction="none").sum(dtype=torch.float32) / len(
            counts
        )
        loss = (nll + beta * kl) / self.s.genes
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self):
        start = time.perf_counter()
        for step in range(1, self.s.steps + 1):
            loss = self.step(self.batch(), beta=min(1.0, step / 500))
            if step % self.s.report == 0 or step == self.s.steps:
                print(f"step {step} loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / self.s.steps:.1f} ms a step")


if __name__ == "__main__":
    Trainer(Settings()).fit()
