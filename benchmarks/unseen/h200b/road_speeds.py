"""Travel speed of road segments with message passing over a city's road graph."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
JUNCTIONS = 24_000 if CUDA else 200
ROADS = 60_000 if CUDA else 600
WIDTH = 128 if CUDA else 16
ROUNDS = 4
STEPS = 600
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))
CLASS_SHARE = [0.36, 0.22, 0.14, 0.10, 0.07, 0.05, 0.03, 0.02, 0.01]

torch.set_float32_matmul_precision("high")


class MessageRound(nn.Module):
    def __init__(self):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(3 * WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.update = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, nodes, edges, start, end):
        heads = nodes.index_select(0, start)
        tails = nodes.index_select(0, end)
        sent = self.message(torch.cat([heads, tails, edges], 1))
        inbox = torch.zeros_like(nodes).index_add(0, end, sent.to(nodes.dtype))
        return self.norm(nodes + self.update(torch.cat([nodes, inbox], 1)))


class SpeedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.road_class = nn.Parameter(torch.randn(len(CLASS_SHARE), WIDTH) * 0.02)
        self.junction = nn.Linear(6, WIDTH)
        self.length = nn.Linear(2, WIDTH)
        self.rounds = nn.ModuleList([MessageRound() for _ in range(ROUNDS)])
        self.out = nn.Sequential(nn.Linear(3 * WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def embed_roads(self, kind, shape):
        return self.road_class[kind] + self.length(shape)

    def forward(self, city):
        nodes = self.junction(city["junctions"])
        edges = self.embed_roads(city["kind"], city["shape"])
        for layer in self.rounds:
            nodes = layer(nodes, edges, city["start"], city["end"])
        ends = [nodes.index_select(0, city["start"]), nodes.index_select(0, city["end"]), edges]
        return self.out(torch.cat(ends, 1)).squeeze(1)


def make_city():
    g = torch.Generator().manual_seed(2)
    share = torch.tensor(CLASS_SHARE)
    city = {
        "junctions": torch.randn(JUNCTIONS, 6, generator=g),
        "start": torch.randint(JUNCTIONS, (ROADS,), generator=g),
        "end": torch.randint(JUNCTIONS, (ROADS,), generator=g),
        "kind": torch.multinomial(share, ROADS, replacement=True, generator=g),
        "shape": torch.rand(ROADS, 2, generator=g),
    }
    speed = 1.0 - 0.1 * city["kind"].float() + 0.2 * city["shape"][:, 0]
    return {k: v.to(device) for k, v in city.items()}, speed.to(device)


def main():
    torch.manual_seed(0)
    city, speed = make_city()
    model = SpeedModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=CUDA)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    clean = city["junctions"]
    began = time.time()
    for step in range(1, STEPS + 1):
        city["junctions"] = clean + 0.05 * torch.randn_like(clean)
        seen = torch.rand(ROADS, device=device) < 0.5
        guess = model(city)
        loss = (F.mse_loss(guess, speed, reduction="none") * seen).sum() / (0.5 * ROADS)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - began:.1f}s", flush=True)
        if LIMIT and step >= LIMIT:
            print("loss", loss.item())
            return


if __name__ == "__main__":
    main()
