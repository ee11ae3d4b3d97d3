"""Semi-supervised node classification on a synthetic citation graph."""

import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

NODES, CLASSES, FEATURES = 3200, 7, 300


def citation_graph(seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, NODES)
    src = rng.integers(0, NODES, NODES * 3)
    dst = rng.integers(0, NODES, NODES * 3)
    same = labels[src] == labels[dst]
    keep = same | (rng.random(len(src)) < 0.12)
    topics = rng.random((CLASSES, FEATURES)) < 0.08
    words = rng.random((NODES, FEATURES)) < 0.03 + 0.10 * topics[labels]
    return words.astype(np.float32), labels, src[keep], dst[keep]


def normalized_adjacency(src, dst):
    a = torch.zeros(NODES, NODES)
    a[src, dst] = 1
    a[dst, src] = 1
    a.fill_diagonal_(1)
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d[None, :]


class GraphConv(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.lin = nn.Linear(fan_in, fan_out)

    def forward(self, x, adj):
        return adj @ self.lin(x)


class GCN(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.first = GraphConv(FEATURES, hidden)
        self.second = GraphConv(hidden, CLASSES)

    def forward(self, x, adj):
        h = F.relu(self.first(F.dropout(x, 0.3, self.training), adj))
        return self.second(F.dropout(h, 0.5, self.training), adj)


torch.manual_seed(0)
words, labels, src, dst = citation_graph()
features = torch.from_numpy(words)
features = features / features.sum(1, keepdim=True).clamp(min=1)
target = torch.from_numpy(labels)
adj = normalized_adjacency(torch.from_numpy(src), torch.from_numpy(dst))

perm = torch.randperm(NODES)
known, held_out = perm[:400], perm[1200:]
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

t = time.perf_counter()
for epoch in range(1, 501):
    model.train()
    loss = F.cross_entropy(model(features, adj)[known], target[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 50 == 0:
        ms = (time.perf_counter() - t) / 50 * 1e3
        model.eval()
        with torch.no_grad():
            guess = model(features, adj)[held_out].argmax(1)
        acc = (guess == target[held_out]).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.3f} acc {acc:.3f} time {ms:.1f} ms/epoch", flush=True)
        t = time.perf_counter()
