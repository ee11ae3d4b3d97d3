"""Click prediction from hashed categorical fields and a few numbers."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
ROWS = 20_000_000 if CUDA else 20_000
DIM = 64 if CUDA else 8
FIELDS = 20
NUMBERS = 13
BATCH = 8192 if CUDA else 64
STEPS = 900
WORKERS = 10 if CUDA else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.set_float32_matmul_precision("high")


class Impressions(Dataset):
    """Every item is one whole batch of the click log."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return self.batches

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        u = torch.rand(BATCH, FIELDS, generator=g)
        ids = (u * u * (ROWS - 1)).long()
        numbers = torch.randn(BATCH, NUMBERS, generator=g)
        clicked = (numbers[:, 0] + (ids[:, 0] % 7 == 0).float() > 0.9).float()
        return ids, numbers, clicked


class ClickNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, DIM, device=device)
        nn.init.uniform_(self.table.weight, -0.05, 0.05)
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 256), nn.ReLU(), nn.Linear(256, DIM))
        self.top = nn.Sequential(
            nn.Linear((FIELDS + 1) * DIM, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, ids, numbers):
        fields = self.table(ids).flatten(1)
        x = torch.cat([fields, self.bottom(numbers)], dim=1)
        return self.top(x).squeeze(1)


def make_optimizers(model):
    dense = [p for name, p in model.named_parameters() if not name.startswith("table.")]
    return [
        torch.optim.Adam(model.table.parameters(), lr=1e-3, fused=CUDA),
        torch.optim.Adam(dense, lr=1e-3, fused=CUDA),
    ]


def main():
    torch.manual_seed(0)
    loader = DataLoader(Impressions(STEPS), batch_size=None, num_workers=WORKERS, pin_memory=CUDA, prefetch_factor=4)
    model = ClickNet().to(device)
    optimizers = make_optimizers(model)
    running = torch.zeros((), device=device)
    began = time.time()
    for step, (ids, numbers, clicked) in enumerate(loader, 1):
        ids = ids.to(device, non_blocking=True)
        numbers = numbers.to(device, non_blocking=True)
        clicked = clicked.to(device, non_blocking=True)
        loss = F.binary_cross_entropy_with_logits(model(ids, numbers), clicked)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        running += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {running.item() / 100:.4f} {time.time() - began:.1f}s", flush=True)
            running.zero_()
        if LIMIT and step >= LIMIT:
            print("loss", loss.item())
            return


if __name__ == "__main__":
    main()
