"""Graph convolution over contact graphs, predicting a score per node."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_graph(n_nodes, dim, gen, radius=0.2):
    pos = torch.rand(n_nodes, 3, generator=gen)
    adj = (torch.cdist(pos, pos) < radius).float()
    adj.fill_diagonal_(0)
    feats = torch.cat([pos, torch.randn(n_nodes, dim - 3, generator=gen)], dim=1)
    target = adj.sum(1) / adj.sum(1).mean()
    return feats, adj, target


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)

    def forward(self, h, adj):
        a_hat = adj + torch.eye(adj.shape[0])
        degree = torch.diag(a_hat.sum(1).pow(-0.5))
        support = torch.mm(torch.mm(degree, a_hat), degree)
        return self.linear(torch.mm(support, h))


class ContactNet(nn.Module):
    def __init__(self, n_in=16, dim=64):
        super().__init__()
        self.conv1 = GraphConv(n_in, dim)
        self.conv2 = GraphConv(dim, dim)
        self.head = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x, adj):
        h = F.relu(self.conv1(x, adj))
        h = F.dropout(h, 0.1, self.training)
        h = F.relu(self.conv2(h, adj))
        return self.head(h).squeeze(-1)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(7)
    graphs = [make_graph(600, 16, gen) for _ in range(12)]
    model = ContactNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    epochs, step, start = 24, 0, time.time()
    for epoch in range(epochs):
        total = 0.0
        for i in torch.randperm(len(graphs)).tolist():
            x, adj, y = graphs[i]
            loss = F.mse_loss(model(x, adj), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            step += 1
        if epoch % 3 == 0:
            print(f"epoch {epoch} loss {total / len(graphs):.4f}")
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
