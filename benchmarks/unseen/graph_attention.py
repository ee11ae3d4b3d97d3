import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionLayer(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, adj):
        q, k, v = self.q(x), self.k(x), self.v(x)
        samples = []
        for b in range(x.size(0)):
            per_head = []
            for h in range(self.heads):
                cols = slice(h * self.d, (h + 1) * self.d)
                scores = q[b, :, cols] @ k[b, :, cols].t() / self.d**0.5
                scores = scores.masked_fill(adj[b] == 0, -1e9)
                per_head.append(F.softmax(scores, dim=-1) @ v[b, :, cols])
            samples.append(torch.cat(per_head, dim=-1))
        return self.out(torch.stack(samples))


class GraphNet(nn.Module):
    def __init__(self, features=16, dim=64, classes=4):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.layer1 = AttentionLayer(dim)
        self.layer2 = AttentionLayer(dim)
        self.norm = nn.LayerNorm(dim)
        self.cls = nn.Linear(dim, classes)

    def forward(self, x, adj):
        h = F.relu(self.inp(x))
        h = h + self.layer1(h, adj)
        h = self.norm(h + self.layer2(h, adj))
        return self.cls(h.mean(dim=1))


def random_graphs(n=512, nodes=20, features=16):
    g = torch.Generator().manual_seed(4)
    x = torch.randn(n, nodes, features, generator=g)
    adj = (torch.rand(n, nodes, nodes, generator=g) < 0.3).float()
    adj = ((adj + adj.transpose(1, 2) + torch.eye(nodes)) > 0).float()
    y = adj.sum((1, 2)).argsort().argsort() * 4 // n
    return x, adj, y


def train_one_epoch(model, data, optimizer, batch_size):
    x, adj, y = data
    losses = []
    for idx in torch.randperm(len(x)).split(batch_size):
        loss = F.cross_entropy(model(x[idx], adj[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = random_graphs()
    net = GraphNet()
    adam = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(5):
        print("epoch", epoch, "loss", round(train_one_epoch(net, data, adam, 32), 4))
