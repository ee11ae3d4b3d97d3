"""Fit a neural potential to energies and forces of small clusters."""

import time

import torch
from torch import nn

N_ATOMS = 12


def reference(pos):
    """Morse-like pair potential with its forces."""
    pos = pos.clone().requires_grad_(True)
    i, j = torch.triu_indices(N_ATOMS, N_ATOMS, 1)
    r = (pos[:, i] - pos[:, j]).norm(dim=-1)
    energy = ((1 - torch.exp(-(r - 1.4))) ** 2 - 1).sum(1)
    forces = -torch.autograd.grad(energy.sum(), pos)[0]
    return energy.detach(), forces


def make_clusters(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(2.0), torch.arange(2.0)) * 1.5
    pos = grid + 0.15 * torch.randn(n, N_ATOMS, 3, generator=g)
    energy, forces = reference(pos)
    energy = (energy - energy.mean()) / energy.std()
    return pos, energy, forces / forces.std()


class Potential(nn.Module):
    def __init__(self, n_basis=16, hidden=64):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.5, 5.0, n_basis))
        self.register_buffer("eye", torch.eye(N_ATOMS, dtype=torch.bool))
        self.net = nn.Sequential(
            nn.Linear(n_basis, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
        )

    def forward(self, pos):
        diff = pos[:, :, None] - pos[:, None]
        r = (diff.pow(2).sum(-1) + 1e-6).sqrt()
        basis = torch.exp(-4 * (r[..., None] - self.centres) ** 2)
        basis = basis.masked_fill(self.eye[..., None], 0.0)
        return self.net(basis.sum(2)).squeeze(-1).sum(1)


def predict(model, pos):
    pos = pos.requires_grad_(True)
    energy = model(pos)
    forces = []
    for k in range(len(pos)):
        (grad,) = torch.autograd.grad(energy[k], pos, create_graph=True)
        forces.append(-grad[k])
    return energy, torch.stack(forces)


def main():
    torch.manual_seed(0)
    pos, energy, forces = make_clusters(1600)
    model = Potential()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batch = 16
    for epoch in range(2):
        order = torch.randperm(len(pos))
        start = time.time()
        for step in range(len(pos) // batch):
            idx = order[step * batch : (step + 1) * batch]
            e, f = predict(model, pos[idx])
            loss = (e - energy[idx]).pow(2).mean() + 10 * (f - forces[idx]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch}: {step + 1} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
