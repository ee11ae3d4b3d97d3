"""Predict which offers a shop's visitors click on, from categorical features."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
FIELDS = 26
ROWS = 20_000_000 if GPU else 20_000
DIM = 64 if GPU else 16
DENSE = 13
BATCH = 4096 if GPU else 64
EPOCHS = 4 if GPU else 1
BATCHES = 225 if GPU else 5


class ClickLog:
    """Visits, drawn on the device from a skewed distribution of ids."""

    def __init__(self, batches, seed):
        self.batches = batches
        self.gen = torch.Generator(device=device).manual_seed(seed)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            u = torch.rand(BATCH, FIELDS, generator=self.gen, device=device)
            ids = (u.pow(3) * (ROWS - 1)).long()
            numbers = torch.randn(BATCH, DENSE, generator=self.gen, device=device)
            clicked = (numbers[:, 0] + u[:, 0] > 0.8).float()
            yield ids, numbers, clicked


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, DIM, device=device)
        nn.init.normal_(self.table.weight, std=0.01)
        self.bottom = nn.Sequential(
            nn.Linear(DENSE, 256),
            nn.ReLU(),
            nn.Linear(256, DIM),
            nn.ReLU(),
        ).to(device)
        self.top = nn.Sequential(
            nn.Linear((FIELDS + 1) * DIM, 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        ).to(device)

    def forward(self, ids, numbers):
        categories = self.table(ids).flatten(1)
        features = torch.cat([categories, self.bottom(numbers)], dim=1)
        return self.top(features).squeeze(1)


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = ClickModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    log = ClickLog(BATCHES, seed=21)
    for epoch in range(EPOCHS):
        total = torch.zeros((), device=device)
        for step, (ids, numbers, clicked) in enumerate(log):
            score = model(ids, numbers)
            loss = F.binary_cross_entropy_with_logits(score, clicked)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if (step + 1) % 75 == 0:
                print(f"epoch {epoch} step {step + 1} loss {total.item() / (step + 1):.4f}", flush=True)
        print(f"epoch {epoch} done, loss {total.item() / len(log):.4f}", flush=True)


if __name__ == "__main__":
    main()
