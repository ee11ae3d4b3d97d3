import os

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
GENES = 1213 if ON_GPU else 61
DRUGS = 188
DEPTH = 6
CELLS = 120_000 if ON_GPU else 2_000
BATCH = 8192 if ON_GPU else 64
EPOCHS = 34
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


def synth_cells():
    torch.manual_seed(2)
    factors = torch.randn(16, GENES, device=device)
    control = torch.randn(CELLS, 16, device=device) @ factors * 0.25
    control += 0.3 * torch.randn(CELLS, GENES, device=device)
    effect = torch.randn(DRUGS, GENES, device=device) * 0.5
    drug = torch.randint(DRUGS, (CELLS,), device=device)
    treated = control + effect[drug] * torch.sigmoid(control)
    return control, drug, treated


class ResidualLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.act = nn.GELU()

    def forward(self, x):
        return x + self.act(self.lin(x))


class ResponseNet(nn.Module):
    def __init__(self, genes, drugs, width, depth):
        super().__init__()
        self.encode = nn.Linear(genes, width)
        self.drug = nn.Embedding(drugs, width)
        self.layers = nn.Sequential(*[ResidualLayer(width) for _ in range(depth)])
        self.decode = nn.Linear(width, genes)

    def forward(self, control, drug):
        h = self.encode(control) + self.drug(drug).to(torch.bfloat16)
        return control + self.decode(self.layers(h)).float()


def main():
    torch.manual_seed(0)
    control, drug, treated = synth_cells()
    width = 3 * GENES
    model = ResponseNet(GENES, DRUGS, width, DEPTH).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=ON_GPU)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params / 1e6:.1f}M parameters, {CELLS} cells", flush=True)

    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(CELLS, device=device)
        for start in range(0, CELLS - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            x, d, y = control[rows], drug[rows], treated[rows]
            with torch.autocast(device, torch.bfloat16):
                out = model(x, d)
            loss = F.mse_loss(out, y)
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
