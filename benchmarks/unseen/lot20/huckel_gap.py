"""Predict the HOMO-LUMO gap of conjugated molecules (Hueckel theory) with a small message passing network.

Molecules are random planar-ish carbon skeletons with some nitrogen and oxygen, 8 to 24 atoms; the gap comes from
the eigenvalues of the Hueckel matrix, so that there is no noise in the labels.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

ALPHA = {0: 0.0, 1: 0.5, 2: 1.0}  # C, N, O


@dataclass
class Config:
    molecules: int = 2500
    max_atoms: int = 24
    hidden: int = 64
    layers: int = 3
    batch_size: int = 48
    steps: int = 900
    lr: float = 2e-3
    seed: int = 7


def random_molecule(rng, max_atoms):
    n = rng.integers(8, max_atoms + 1)
    adjacency = np.zeros((n, n))
    for i in range(1, n):
        j = rng.integers(max(0, i - 3), i)
        adjacency[i, j] = adjacency[j, i] = 1
    for i in range(6, n, 6):
        adjacency[i, i - 5] = adjacency[i - 5, i] = 1
    atoms = rng.choice(3, n, p=[0.8, 0.12, 0.08])
    levels = np.sort(np.linalg.eigvalsh(adjacency + np.diag([ALPHA[a] for a in atoms])))[::-1]
    gap = levels[n // 2 - 1] - levels[n // 2]
    return atoms, adjacency, gap


class Molecules(Dataset):
    def __init__(self, cfg):
        rng = np.random.default_rng(cfg.seed)
        count, size = cfg.molecules, cfg.max_atoms
        self.atoms = torch.zeros(count, size, dtype=torch.long)
        self.adjacency = torch.zeros(count, size, size)
        self.sizes = torch.zeros(count, dtype=torch.long)
        self.gap = torch.zeros(count)
        for k in range(count):
            atoms, adjacency, gap = random_molecule(rng, size)
            n = len(atoms)
            self.atoms[k, :n] = torch.as_tensor(atoms)
            self.adjacency[k, :n, :n] = torch.as_tensor(adjacency)
            self.sizes[k], self.gap[k] = n, gap

    def __len__(self):
        return len(self.gap)

    def __getitem__(self, k):
        return self.atoms[k], self.adjacency[k], self.sizes[k], self.gap[k]


class MessagePassing(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.self_weight = nn.Linear(hidden, hidden)
        self.neighbour_weight = nn.Linear(hidden, hidden, bias=False)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, h, adjacency):
        message = adjacency @ self.neighbour_weight(h)
        return h + torch.relu(self.norm(self.self_weight(h) + message))


class GapNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(3, cfg.hidden)
        self.layers = nn.ModuleList(MessagePassing(cfg.hidden) for _ in range(cfg.layers))
        self.readout = nn.Sequential(nn.Linear(2 * cfg.hidden, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, 1))

    def forward(self, atoms, adjacency, sizes):
        pooled = []
        for i in range(atoms.size(0)):
            n = sizes[i]
            h = self.embed(atoms[i, :n])
            for layer in self.layers:
                h = layer(h, adjacency[i, :n, :n])
            pooled.append(torch.cat([h.mean(0), h.sum(0) / 10]))
        return self.readout(torch.stack(pooled)).squeeze(-1)


def evaluate(model, loader):
    model.eval()
    errors = []
    with torch.no_grad():
        for atoms, adjacency, sizes, gap in loader:
            errors.append((model(atoms, adjacency, sizes) - gap).abs())
    model.train()
    return torch.cat(errors).mean().item()


def train(cfg):
    torch.manual_seed(cfg.seed)
    data = Molecules(cfg)
    train_set, valid_set = random_split(data, [cfg.molecules - 200, 200])
    loader = DataLoader(train_set, batch_size=cfg.batch_size, shuffle=True, drop_last=True)
    valid_loader = DataLoader(valid_set, batch_size=100)
    model = GapNet(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
    step, begin = 0, time.perf_counter()
    while step < cfg.steps:
        for atoms, adjacency, sizes, gap in loader:
            prediction = model(atoms, adjacency, sizes)
            loss = nn.functional.smooth_l1_loss(prediction, gap)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"[{step}/{cfg.steps}] loss {loss.item():.4f}", flush=True)
            if step >= cfg.steps:
                break
    took = time.perf_counter() - begin
    print(f"validation MAE {evaluate(model, valid_loader):.4f} beta, {1e3 * took / step:.2f} ms per step")


if __name__ == "__main__":
    import sys

    train(Config(steps=int(sys.argv[1])) if len(sys.argv) > 1 else Config())
