"""Train a recommendation model: 26 embedding tables, their interactions, and two small MLPs.

    python dlrm.py
    python dlrm.py --tiny --steps 20        # small tables, for a CPU

The clicks are made at the start: a hidden rule over the 13 numbers and the 26 features of four values each.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES = 26
BAG = 4


class ClickDataset(Dataset):
    def __init__(self, sizes, length=200_000):
        generator = torch.Generator().manual_seed(1)
        self.dense = torch.randn(length, 13, generator=generator)
        draws = torch.rand(length, FEATURES, BAG, generator=generator) ** 3  # few values are frequent
        self.categories = (draws * torch.tensor(sizes).view(1, -1, 1)).long()
        rule = torch.randn(13, generator=generator)
        score = self.dense @ rule * 0.3 + torch.cos(draws.sum(dim=2) * 3).sum(dim=1) * 0.2
        self.labels = (torch.rand(length, generator=generator) < torch.sigmoid(score)).float()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.dense[i], self.categories[i], self.labels[i]


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(size, dim, mode="sum") for size in sizes])
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.05, 0.05)
        self.bottom = mlp([13, 512, 256, dim])
        vectors = FEATURES + 1
        self.top = nn.Sequential(mlp([dim + vectors * (vectors - 1) // 2, 512, 256]), nn.Linear(256, 1))

    def interact(self, vectors):
        """Dot products of all pairs of vectors."""
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows = torch.tensor([i for i in range(len(vectors)) for j in range(i)])
        columns = torch.tensor([j for i in range(len(vectors)) for j in range(i)])
        return products[:, rows, columns]

    def forward(self, dense, categories):
        x = self.bottom(dense)
        embedded = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        pairs = self.interact([x, *embedded])
        return self.top(torch.cat([x, pairs], dim=1)).squeeze(1)


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="small tables, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.dim, args.length, largest = 64, 200_000, 60_000
    if args.tiny:
        args.dim, args.length, args.batch_size, largest = 16, 4000, 64, 200
    args.sizes = [max(10, largest >> (i % 12)) for i in range(FEATURES)]
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    dataset = ClickDataset(args.sizes, args.length)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = DLRM(args.sizes, args.dim).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.BCEWithLogitsLoss()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    step, total, right, start = 0, 0.0, 0.0, time.perf_counter()
    while step < args.steps:
        for dense, categories, labels in loader:
            dense, categories, labels = dense.to(device), categories.to(device), labels.to(device)
            optimizer.zero_grad()
            logits = model(dense, categories)
            loss = criterion(logits, labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
            right += ((logits > 0) == (labels > 0.5)).float().mean().item()
            step += 1
            if step % args.log_every == 0:
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                scores = f"mean {total / step:.4f} accuracy {right / step:.4f}"
                print(f"step {step} loss {loss.item():.4f} {scores} {ms:.2f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
