"""Importance-weighted autoencoder on simulated single-cell expression profiles."""

import math
import time

import numpy as np
import torch
from torch import nn

GENES, CELLS, TYPES = 800, 12000, 12


def load_expression(seed=0):
    """Log-normalised expression, one row a cell."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(TYPES, size=CELLS)
    programs = rng.gamma(0.6, 1.0, (TYPES, GENES)).astype(np.float32)
    depth = rng.lognormal(0.0, 0.3, (CELLS, 1)).astype(np.float32)
    table = programs[kind] * depth
    table += 0.3 * np.abs(rng.standard_normal((CELLS, GENES), dtype=np.float32))
    return torch.from_numpy(np.log1p(table))


def log_normal(x, mu, logvar):
    return -0.5 * (math.log(2 * math.pi) + logvar + (x - mu).square() / logvar.exp()).sum(-1)


class CellIWAE(nn.Module):
    def __init__(self, genes, hidden=288, latent=10, samples=8):
        super().__init__()
        self.samples, self.latent = samples, latent
        self.encoder = nn.Sequential(
            nn.Linear(genes, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2 * latent),
        )
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, genes))
        self.noise = nn.Parameter(torch.tensor(-1.0))

    def posterior(self, x):
        mu, logvar = self.encoder(x).chunk(2, -1)
        return mu, logvar.clamp(-8, 4)

    def forward(self, x):
        """Importance-weighted bound, one value a cell."""
        k, n = self.samples, x.size(0)
        x = x.repeat(k, 1)
        mu, logvar = self.posterior(x)
        z = mu + torch.randn(k * n, self.latent) * (0.5 * logvar).exp()
        error = (x - self.decoder(z)).square().sum(-1)
        genes = x.size(-1)
        log_px = -0.5 * (error / self.noise.exp() + genes * (self.noise + math.log(2 * math.pi)))
        log_pz = log_normal(z, torch.zeros(()), torch.zeros(()))
        log_w = log_px + log_pz - log_normal(z, mu, logvar)
        return torch.logsumexp(log_w.view(k, n), 0) - math.log(k)


def minibatches(cells, size):
    order = torch.randperm(len(cells))
    for part in order[: len(order) // size * size].split(size):
        yield cells[part]


@torch.no_grad()
def held_out(model, cells):
    model.eval()
    bound = torch.cat([model(part) for part in cells.split(100)]).mean().item()
    model.train()
    return bound


def train(epochs=4, batch=48, lr=1e-3):
    torch.manual_seed(0)
    cells = load_expression()
    train_cells, test_cells = cells[:-400], cells[-400:]
    model = CellIWAE(GENES)
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    step, spent = 0, 0.0
    for epoch in range(epochs):
        began = time.perf_counter()
        total = 0.0
        for x in minibatches(train_cells, batch):
            loss = -model(x).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.item()
            step += 1
        spent += time.perf_counter() - began
        print(
            f"epoch {epoch} train {total / (len(train_cells) // batch):.2f} held out {held_out(model, test_cells):.2f}",
            flush=True,
        )
    print(f"{step} steps, {1000 * spent / step:.2f} ms/step")


if __name__ == "__main__":
    train()
