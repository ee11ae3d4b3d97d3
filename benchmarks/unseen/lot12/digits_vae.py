"""Variational autoencoder on the scikit-learn digits."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence


class Encoder(nn.Module):
    def __init__(self, hidden, latent):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.mean = nn.Linear(hidden, latent)
        self.log_var = nn.Linear(hidden, latent)

    def forward(self, x):
        h = self.body(x)
        var = self.log_var(h).clamp(-8, 4).exp()
        return MultivariateNormal(self.mean(h), torch.diag_embed(var), validate_args=False)


class VAE(nn.Module):
    def __init__(self, hidden=512, latent=32):
        super().__init__()
        self.latent = latent
        self.encoder = Encoder(hidden, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 64)
        )

    def prior(self, n):
        return MultivariateNormal(torch.zeros(n, self.latent), torch.eye(self.latent).expand(n, -1, -1))

    def forward(self, x):
        posterior = self.encoder(x)
        z = posterior.rsample()
        return self.decoder(z), posterior


def elbo(model, x, beta):
    logits, posterior = model(x)
    rec = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
    kl = kl_divergence(posterior, model.prior(len(x)))
    return (rec + beta * kl).mean(), rec.mean(), kl.mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=40)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    torch.manual_seed(0)
    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        beta = min(1.0, (epoch + 1) / 10)
        for batch in x[torch.randperm(len(x))].split(args.batch_size):
            if len(batch) < args.batch_size:
                continue
            loss, rec, kl = elbo(model, batch, beta)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 8 == 0:
            print(f"epoch {epoch} loss {loss.item():.2f} rec {rec.item():.2f} kl {kl.item():.2f}")


if __name__ == "__main__":
    main()
