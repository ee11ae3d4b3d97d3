"""Next-item recommendation from click sequences, full softmax over the catalogue."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
DEV = "cuda" if GPU else "cpu"
STEPS = int(os.environ.get("STEPS", 1200))
ITEMS, USERS, CLICKS, BATCH = (60_000, 100_000, 50, 1024) if GPU else (2_000, 2_000, 20, 64)


def click_log(seed=0):
    """Users stay near a taste, popular items are clicked more often."""
    g = torch.Generator().manual_seed(seed)
    taste = torch.randint(0, ITEMS, (USERS, 1), generator=g)
    near = taste + (200 * torch.randn(USERS, CLICKS + 1, generator=g)).long()
    popular = (ITEMS * torch.rand(USERS, CLICKS + 1, generator=g) ** 4).long()
    pick = torch.rand(USERS, CLICKS + 1, generator=g) < 0.8
    return torch.where(pick, near, popular).remainder(ITEMS)


class SelfAttentiveRecommender(nn.Module):
    def __init__(self, dim=128, heads=2, depth=2):
        super().__init__()
        self.item = nn.Embedding(ITEMS, dim)
        nn.init.normal_(self.item.weight, std=0.02)
        self.place = nn.Parameter(0.02 * torch.randn(CLICKS, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CLICKS))

    def forward(self, clicks):
        x = self.item(clicks) + self.place
        x = self.encoder(x, mask=self.mask, is_causal=True)
        return F.linear(x[:, -1], self.item.weight)


class RankingMetrics:
    """Running hit rate and NDCG at k, kept on the device until asked for."""

    def __init__(self, k=10):
        self.k = k
        self.reset()

    def reset(self):
        self.hits = torch.zeros((), device=DEV)
        self.gain = torch.zeros((), device=DEV)
        self.count = 0

    @torch.no_grad()
    def update(self, scores, target):
        order = scores.argsort(dim=1, descending=True)
        rank = (order == target[:, None]).int().argmax(dim=1)
        hit = (rank < self.k).float()
        self.hits += hit.sum()
        self.gain += (hit / torch.log2(rank + 2.0)).sum()
        self.count += len(target)

    def result(self):
        return self.hits.item() / self.count, self.gain.item() / self.count


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    log = click_log().to(DEV)
    model = SelfAttentiveRecommender().to(DEV)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    metrics = RankingMetrics()
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        rows = log[torch.randint(USERS, (BATCH,), device=DEV)]
        clicks, target = rows[:, :-1], rows[:, -1]
        with torch.autocast(DEV, torch.bfloat16):
            scores = model(clicks)
        scores = scores.float()
        loss = F.cross_entropy(scores, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        metrics.update(scores, target)
        if step % 100 == 0 or step == STEPS:
            hit, ndcg = metrics.result()
            print(f"step {step} loss {loss.item():.3f} hit@10 {hit:.4f} ndcg@10 {ndcg:.4f}")
            metrics.reset()
    print(f"{1000 * (time.perf_counter() - start) / STEPS:.1f} ms a step")


if __name__ == "__main__":
    main()
