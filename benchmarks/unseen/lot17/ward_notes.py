"""Predict the discharge ward from short coded clinical notes (bag of codes plus vitals)."""

import gc
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CODES, WARDS, VITALS = 6000, 24, 5
PATIENTS, BATCH, EPOCHS = 6_000, 48, 3


def admit(rng, prototypes):
    """One patient: the codes of the stay, a list of (hour, vitals) readings and the ward."""
    ward = rng.randrange(WARDS)
    codes = [
        rng.choice(prototypes[ward]) if rng.random() < 0.35 else rng.randrange(CODES) for _ in range(rng.randint(6, 30))
    ]
    hour, readings = 0, []
    for _ in range(rng.randint(3, 7)):
        hour += rng.randint(1, 9)
        readings.append([hour, [rng.gauss(ward % (k + 2), 1.0) for k in range(VITALS)]])
    return {"codes": codes, "readings": readings, "ward": ward}


def registry(n, seed):
    rng = random.Random(seed)
    prototypes = [[rng.randrange(CODES) for _ in range(40)] for _ in range(WARDS)]
    return [admit(rng, prototypes) for _ in range(n)]


def collate(patients):
    flat, offsets, vitals = [], [], []
    for p in patients:
        offsets.append(len(flat))
        flat.extend(p["codes"])
        last = p["readings"][-1]
        vitals.append([last[0] / 24.0] + last[1])
    ward = torch.tensor([p["ward"] for p in patients])
    return torch.tensor(flat), torch.tensor(offsets), torch.tensor(vitals), ward


class WardNet(nn.Module):
    def __init__(self, dim=96, width=512):
        super().__init__()
        self.codes = nn.EmbeddingBag(CODES, dim, mode="mean")
        self.norm = nn.LayerNorm(dim + VITALS + 1)
        self.fc1 = nn.Linear(dim + VITALS + 1, width)
        self.fc2 = nn.Linear(width, width)
        self.out = nn.Linear(width, WARDS)

    def forward(self, flat, offsets, vitals):
        z = self.norm(torch.cat([self.codes(flat, offsets), vitals], dim=1))
        z = F.gelu(self.fc1(z))
        z = z + F.gelu(self.fc2(z))
        return self.out(z)


def run_batch(model, opt, batch):
    flat, offsets, vitals, ward = batch
    loss = F.cross_entropy(model(flat, offsets, vitals), ward)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    return loss.item()


def train_epoch(model, opt, patients, rng):
    order = list(range(len(patients)))
    rng.shuffle(order)
    losses = []
    for i in range(0, len(order) - BATCH + 1, BATCH):
        batch = collate([patients[j] for j in order[i : i + BATCH]])
        losses.append(run_batch(model, opt, batch))
        del batch
        if len(losses) % 5 == 0:
            gc.collect()
        if len(losses) % 60 == 0:
            print(f"  {len(losses):5d}  {sum(losses[-60:]) / 60:.4f}")
    return losses


def main():
    torch.manual_seed(2)
    patients = registry(PATIENTS, seed=8)
    model = WardNet()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    rng = random.Random(4)
    steps, t0 = 0, time.perf_counter()
    for epoch in range(EPOCHS):
        losses = train_epoch(model, opt, patients, rng)
        steps += len(losses)
        print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")
    dt = time.perf_counter() - t0
    print(f"{steps} steps, {dt:.1f} s, {1e3 * dt / steps:.2f} ms a step")


if __name__ == "__main__":
    main()
