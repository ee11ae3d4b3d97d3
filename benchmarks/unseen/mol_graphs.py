from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CFG = dict(graphs=960, batch=12, hidden=96, layers=6, epochs=2, lr=1e-3, seed=5)


def make_graph(gen, features=16):
    n = int(torch.empty(()).log_normal_(3.8, 0.7, generator=gen).clamp(8, 256))
    chain = torch.arange(n - 1)
    extra = torch.randint(n, (2, max(1, n // 4)), generator=gen)
    adj = torch.eye(n)
    adj[chain, chain + 1] = 1
    adj[extra[0], extra[1]] = 1
    adj = torch.maximum(adj, adj.t())
    scale = adj.sum(1).rsqrt()
    x = torch.randn(n, features, generator=gen)
    target = (x[:, 0] * adj.sum(1)).mean()
    return x, scale[:, None] * adj * scale[None, :], target


def collate(graphs):
    size = max(g[0].size(0) for g in graphs)
    x = torch.zeros(len(graphs), size, graphs[0][0].size(1))
    adj = torch.zeros(len(graphs), size, size)
    mask = torch.zeros(len(graphs), size, 1)
    for i, (xi, ai, _) in enumerate(graphs):
        n = xi.size(0)
        x[i, :n], adj[i, :n, :n], mask[i, :n] = xi, ai, 1
    return x, adj, mask, torch.stack([g[2] for g in graphs])


def build_batches(cfg):
    gen = torch.Generator().manual_seed(cfg["seed"])
    graphs = [make_graph(gen) for _ in range(cfg["graphs"])]
    graphs.sort(key=lambda g: g[0].size(0))  # keeps padding low
    step = cfg["batch"]
    return [collate(graphs[i : i + step]) for i in range(0, len(graphs), step)]


class GraphNet(nn.Module):
    def __init__(self, hidden, layers, features=16):
        super().__init__()
        self.inp = nn.Linear(features, hidden)
        self.convs = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x, adj, mask):
        h = self.inp(x)
        for conv, norm in zip(self.convs, self.norms):
            h = h + F.relu(norm(torch.bmm(adj, conv(h)))) * mask
        pooled = (h * mask).sum(1) / mask.sum(1)
        return self.out(pooled).squeeze(1)


class Meters:
    def __init__(self, world):
        self.world = world
        self.values = defaultdict(list)

    def update(self, name, value):
        value = value.detach().clone()
        dist.all_reduce(value)
        self.values[name].append(value.item() / self.world)

    def watch(self, model):
        for name, p in model.named_parameters():
            self.update(f"weight/{name}", p.norm())
            self.update(f"grad/{name}", p.grad.norm())

    def mean(self, prefix):
        picked = [v for k, vs in self.values.items() if k.startswith(prefix) for v in vs]
        return sum(picked) / len(picked)


def main(cfg):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg["seed"])
    batches = build_batches(cfg)
    val, train = batches[::10], [b for i, b in enumerate(batches) if i % 10]
    per_rank = len(train) // world
    mine = train[rank::world][:per_rank]

    model = DDP(GraphNet(cfg["hidden"], cfg["layers"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    for epoch in range(cfg["epochs"]):
        order = torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch)).tolist()
        meters = Meters(world)
        for i in order:
            x, adj, mask, target = mine[i]
            loss = F.smooth_l1_loss(model(x, adj, mask), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meters.update("loss", loss)
            meters.watch(model.module)
        with torch.no_grad():
            errors = [(model.module(x, a, m) - t).abs().mean() for x, a, m, t in val[rank::world]]
        meters.update("val", torch.stack(errors).mean())
        if rank == 0:
            print(
                f"epoch {epoch} train {meters.mean('loss'):.4f} val mae {meters.mean('val'):.4f} "
                f"grad {meters.mean('grad/'):.4f} weight {meters.mean('weight/'):.2f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(CFG)
