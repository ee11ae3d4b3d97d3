import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Writer:
    def __init__(self):
        self.scalars, self.hists = {}, {}

    def add_scalar(self, tag, value, step):
        self.scalars.setdefault(tag, []).append((step, value))

    def add_histogram(self, tag, values, step, bins=64):
        counts, edges = np.histogram(values, bins=bins)
        self.hists[tag] = (step, counts, edges)


class VAE(nn.Module):
    def __init__(self, dim=1024, hidden=400, latent=20):
        super().__init__()
        self.enc = nn.Linear(dim, hidden)
        self.mu = nn.Linear(hidden, latent)
        self.logvar = nn.Linear(hidden, latent)
        self.dec1 = nn.Linear(latent, hidden)
        self.dec2 = nn.Linear(hidden, dim)

    def forward(self, x):
        h = F.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.dec2(F.relu(self.dec1(z)))), mu, logvar


def elbo(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / x.size(0)


def log_parameters(writer, model, step):
    for name, p in model.named_parameters():
        writer.add_histogram(f"weights/{name}", p.detach().numpy(), step)
        writer.add_histogram(f"grads/{name}", p.grad.numpy(), step)


def main(steps=80, batch_size=96):
    torch.manual_seed(0)
    data = torch.rand(3000, 1024)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    writer = Writer()
    for step in range(steps):
        x = data[torch.randint(0, len(data), (batch_size,))]
        recon, mu, logvar = model(x)
        loss = elbo(recon, x, mu, logvar)
        optimizer.zero_grad()
        loss.backward()
        log_parameters(writer, model, step)
        optimizer.step()
        if step % 10 == 0:
            writer.add_scalar("loss", loss.item(), step)
            print(f"step {step:3d}  elbo {loss.item():.2f}")


if __name__ == "__main__":
    main()
