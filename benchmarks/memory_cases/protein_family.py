# planted: none (healthy) (large by parameters and Adam)
# dominates at the peak: optimizer state 145 MB, parameters 73, gradients 73 of 324 (34 temporaries inside
#     optimizer.step)
# held by: -
# mend: none needed
# measured: CPU: peak 324 MB, flat 290 after every step
# on a GPU: about 480 M parameters: 7.7 GB (not run)
"""Protein family classification with a wide feed-forward net over k-mer embeddings."""
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = device.type == "cuda"
KMERS, DIM, HIDDEN = (8000, 2048, 8192) if GPU else (8000, 512, 2048)
LAYERS = 6 if GPU else 3
FAMILIES, LENGTH, BATCH = 200, 100, 64 if GPU else 16
STEPS = int(os.environ.get("STEPS", 300 if GPU else 120))


class FamilyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.kmers = nn.EmbeddingBag(KMERS, DIM, mode="mean")
        self.inputs = nn.Linear(DIM, HIDDEN)
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(LAYERS))
        self.out = nn.Linear(HIDDEN, FAMILIES)

    def forward(self, ids):
        h = F.gelu(self.inputs(self.kmers(ids)))
        for layer, norm in zip(self.layers, self.norms):
            h = h + F.gelu(layer(norm(h)))
        return self.out(h)


def proteins(n, generator):
    family = torch.randint(0, FAMILIES, (n,), generator=generator)
    common = torch.randint(0, KMERS, (n, LENGTH), generator=generator)
    motif = (family[:, None] * 37 + torch.randint(0, 30, (n, LENGTH), generator=generator)) % KMERS
    return torch.where(torch.rand(n, LENGTH, generator=generator) < 0.25, motif, common), family


@torch.no_grad()
def evaluate(model, generator, rounds=8):
    model.eval()
    right = 0
    for _ in range(rounds):
        ids, family = proteins(BATCH, generator)
        right += (model(ids.to(device)).argmax(1).cpu() == family).sum().item()
    model.train()
    return right / (rounds * BATCH)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = FamilyNet().to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    begin = time.perf_counter()
    for step in range(1, STEPS + 1):
        ids, family = proteins(BATCH, generator)
        loss = F.cross_entropy(model(ids.to(device)), family.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.3f} accuracy {evaluate(model, generator):.3f}", flush=True)
    print(f"{(time.perf_counter() - begin) / STEPS * 1e3:.0f} ms a step")


if __name__ == "__main__":
    main()
