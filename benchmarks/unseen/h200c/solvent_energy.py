import os

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
SPECIES = 9
SHARES = [0.52, 0.27, 0.08, 0.05, 0.03, 0.02, 0.01, 0.01, 0.01]
DIM = 256 if ON_GPU else 32
ATOMS = 160 if ON_GPU else 12
BOXES = 8192 if ON_GPU else 64
BATCH = 512 if ON_GPU else 8
EPOCHS = 32
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


def synth_boxes():
    torch.manual_seed(3)
    share = torch.tensor(SHARES, device=device)
    species = torch.multinomial(share, BOXES * ATOMS, replacement=True).view(BOXES, ATOMS)
    radial = torch.rand(BOXES, ATOMS, 24, device=device)
    per_species = torch.randn(SPECIES, device=device)
    energy = (per_species[species] * radial.mean(-1)).sum(1, keepdim=True)
    return species, radial, (energy - energy.mean()) / energy.std()


class AtomLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        pooled = x.mean(1, keepdim=True)
        return x + self.down(F.silu(self.up(self.norm(x + pooled))))


class EnergyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.species_table = nn.Parameter(torch.randn(SPECIES, DIM))
        self.radial = nn.Linear(24, DIM)
        self.layers = nn.ModuleList([AtomLayer(DIM) for _ in range(3)])
        self.readout = nn.Linear(DIM, 1)

    def forward(self, species, radial):
        h = self.species_table[species]
        h = h * self.radial(radial)
        for layer in self.layers:
            h = layer(h)
        return self.readout(h).float().mean(1)


def main():
    torch.manual_seed(0)
    species, radial, energy = synth_boxes()
    model = EnergyNet().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=ON_GPU)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(BOXES, device=device)
        for rows in order.split(BATCH):
            with torch.autocast(device, torch.bfloat16):
                pred = model(species[rows], radial[rows])
            loss = F.smooth_l1_loss(pred, energy[rows])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if step == LIMIT:
                return


if __name__ == "__main__":
    main()
