import numpy as np
import torch
import torch.nn as nn


def simulate_spectra(n=4000, bands=400, seed=0):
    rng = np.random.default_rng(seed)
    grid = np.linspace(0, 1, bands)
    centers = rng.uniform(0.1, 0.9, size=(n, 3))
    widths = rng.uniform(0.01, 0.1, size=(n, 3))
    peaks = np.exp(-((grid - centers[..., None]) ** 2) / (2 * widths[..., None] ** 2))
    spectra = peaks.sum(axis=1) + rng.normal(0, 0.01, size=(n, bands))
    return spectra, np.concatenate([centers, widths], axis=1)


class Standardizer:
    def fit(self, x):
        self.mean, self.std = x.mean(axis=0), x.std(axis=0) + 1e-9
        return self

    def __call__(self, x):
        return (x - self.mean) / self.std


class SpectraNet(nn.Module):
    def __init__(self, bands, targets, hidden=768):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(bands, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
        )
        self.head = nn.Linear(hidden, targets)

    def forward(self, x):
        return self.head(self.body(x))


def fit(x, y, epochs=4, batch_size=200):
    model = SpectraNet(x.shape[1], y.shape[1]).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    for epoch in range(epochs):
        total = 0.0
        for idx in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            loss = loss_fn(model(x[idx]), y[idx])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(idx)
        print(f"epoch {epoch + 1}/{epochs} mse {total / len(x):.5f}")
    return model


def main():
    torch.manual_seed(0)
    spectra, params = simulate_spectra()
    x = torch.from_numpy(Standardizer().fit(spectra)(spectra))
    y = torch.from_numpy(Standardizer().fit(params)(params))
    fit(x, y)


if __name__ == "__main__":
    main()
