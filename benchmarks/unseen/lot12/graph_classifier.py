"""Classification of small random graphs with a message passing network."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def make_graph(label, g):
    n = int(torch.randint(10, 30, (1,), generator=g))
    ring = torch.arange(n)
    extra = torch.randint(n, (2, n * (1 + label)), generator=g)
    edges = torch.cat([torch.stack([ring, ring.roll(1)]), extra], dim=1)
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    return torch.randn(n, 16, generator=g), edges, label


def collate(graphs):
    feats, edges, owner, labels, offset = [], [], [], [], 0
    for i, (x, e, label) in enumerate(graphs):
        feats.append(x)
        edges.append(e + offset)
        owner.append(torch.full((len(x),), i))
        labels.append(label)
        offset += len(x)
    return torch.cat(feats), torch.cat(edges, dim=1), torch.cat(owner), torch.tensor(labels)


class MessageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin = nn.Linear(2 * dim, dim)

    def forward(self, x, edges):
        agg = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return F.relu(self.lin(torch.cat([x, agg], dim=1)))


class Readout(nn.Module):
    def forward(self, x, owner):
        pooled = []
        for i in range(int(owner.max()) + 1):
            nodes = x[owner == i]
            pooled.append(nodes.mean(dim=0))
        return torch.stack(pooled)


class GraphNet(nn.Module):
    def __init__(self, dim=32, classes=3, depth=3):
        super().__init__()
        self.inp = nn.Linear(16, dim)
        self.layers = nn.ModuleList(MessageLayer(dim) for _ in range(depth))
        self.readout = Readout()
        self.heads = nn.ModuleList(nn.Linear(dim, classes) for _ in range(depth))

    def forward(self, x, edges, owner):
        x, logits = self.inp(x), 0
        for layer, head in zip(self.layers, self.heads):
            x = layer(x, edges)
            logits = logits + head(self.readout(x, owner))
        return logits


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=30)
    p.add_argument("--batch-size", type=int, default=160)
    args = p.parse_args()

    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    graphs = [make_graph(i % 3, g) for i in range(1280)]
    order = torch.randperm(len(graphs)).tolist()
    batches = [
        collate([graphs[j] for j in order[k : k + args.batch_size]]) for k in range(0, len(order), args.batch_size)
    ]
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        correct = 0
        for x, edges, owner, labels in batches:
            logits = model(x, edges, owner)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (logits.argmax(1) == labels).sum().item()
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} acc {correct / len(graphs):.3f}")


if __name__ == "__main__":
    main()
