"""Two layer graph convolution on a citation-like graph of papers, each with a text embedding."""

import os
import time

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import nn

EPOCHS = int(os.environ.get("STEPS", 800))
NODES, FEATURES, CLASSES, HIDDEN = 6000, 768, 7, 16


def make_graph(seed=7):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, NODES)
    by_class = [np.flatnonzero(labels == c) for c in range(CLASSES)]
    rows, cols = [], []
    for node in range(NODES):
        for _ in range(rng.poisson(4) + 1):
            if rng.random() < 0.8:
                other = rng.choice(by_class[labels[node]])
            else:
                other = rng.integers(NODES)
            rows.append(node)
            cols.append(other)
    adj = sp.coo_matrix((np.ones(len(rows)), (rows, cols)), shape=(NODES, NODES)).tocsr()
    adj = adj.maximum(adj.T) + sp.eye(NODES)
    centres = rng.normal(size=(CLASSES, FEATURES))
    vectors = 0.06 * centres[labels] + rng.normal(size=(NODES, FEATURES))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return normalize(adj), vectors.astype(np.float32), labels


def normalize(adj):
    degree = np.asarray(adj.sum(1)).ravel()
    half = sp.diags(degree ** -0.5)
    return (half @ adj @ half).tocsr()


def to_torch(matrix):
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data.astype(np.float32)),
        size=matrix.shape,
    )


class GraphConvolution(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, adj):
        neighbours = torch.sparse.mm(adj, x)
        return neighbours @ self.weight + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GraphConvolution(FEATURES, HIDDEN)
        self.conv2 = GraphConvolution(HIDDEN, CLASSES)

    def forward(self, x, adj):
        x = F.relu(self.conv1(x, adj))
        x = F.dropout(x, 0.5, self.training)
        return self.conv2(x, adj)


def main():
    torch.manual_seed(7)
    adj, vectors, labels = make_graph()
    adj = to_torch(adj)
    x, y = torch.from_numpy(vectors), torch.from_numpy(labels)
    order = torch.randperm(NODES)
    train, val = order[:600], order[600:2000]
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    begin = time.perf_counter()
    for epoch in range(EPOCHS):
        model.train()
        out = model(x, adj)
        loss = F.cross_entropy(out[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (epoch + 1) % 100 == 0:
            model.eval()
            with torch.no_grad():
                accuracy = (model(x, adj)[val].argmax(1) == y[val]).float().mean()
            print(f"epoch {epoch + 1:4d}  loss {loss.item():.4f}  val acc {accuracy.item():.3f}")
    took = time.perf_counter() - begin
    print(f"{EPOCHS} steps, {took / EPOCHS * 1e3:.2f} ms a step")


if __name__ == "__main__":
    main()
