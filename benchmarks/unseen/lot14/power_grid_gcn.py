"""Predict bus voltages of a distribution grid from loads with a graph network."""

import time

import numpy as np
import torch
from torch import nn

N_BUSES = 1400


def make_grid(n=N_BUSES, ties=120, seed=0):
    rng = np.random.default_rng(seed)
    parents = [max(0, i - int(rng.integers(1, 6))) for i in range(1, n)]
    edges = [(i + 1, p) for i, p in enumerate(parents)]
    edges += [tuple(rng.choice(n, 2, replace=False)) for _ in range(ties)]
    return np.array(edges)


def normalised_adjacency(edges, n=N_BUSES):
    adj = torch.eye(n)
    src, dst = torch.from_numpy(edges).long().T
    adj[src, dst] = 1.0
    adj[dst, src] = 1.0
    scale = adj.sum(1).rsqrt()
    return scale[:, None] * adj * scale[None, :]


def make_loads(adj, count, seed=1):
    g = torch.Generator().manual_seed(seed)
    loads = torch.randn(N_BUSES, count, 2, generator=g)
    drop = loads[..., 0] + 0.4 * loads[..., 1]
    for _ in range(3):
        drop = adj @ drop
    return loads, drop


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.neighbours = nn.Linear(d_in, d_out)
        self.own = nn.Linear(d_in, d_out)

    def forward(self, adj, h):
        n, b, _ = h.shape
        msg = adj @ self.neighbours(h).reshape(n, -1)
        return msg.view(n, b, -1) + self.own(h)


class GridNet(nn.Module):
    def __init__(self, adj, hidden=16):
        super().__init__()
        self.register_buffer("adj", adj)
        self.layers = nn.ModuleList([GraphConv(2, hidden), GraphConv(hidden, hidden), GraphConv(hidden, hidden)])
        self.head = nn.Linear(hidden, 1)

    def forward(self, loads):
        h = loads
        for layer in self.layers:
            h = torch.relu(layer(self.adj, h))
        return self.head(h).squeeze(-1)


def main():
    torch.manual_seed(0)
    adj = normalised_adjacency(make_grid())
    loads, drop = make_loads(adj, 320)
    model = GridNet(adj)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batch = 4
    for epoch in range(2):
        order = torch.randperm(loads.shape[1])
        start = time.time()
        for step in range(loads.shape[1] // batch):
            idx = order[step * batch : (step + 1) * batch]
            loss = (model(loads[:, idx]) - drop[:, idx]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch}: {step + 1} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
