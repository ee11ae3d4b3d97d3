"""Which phone customers will leave: a deep residual net on a table, trained in cycles.

Each cycle goes on from the best state so far and anneals its learning rate.
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
CUSTOMERS = 200_000 if CUDA else 2000
COLUMNS = 96
WIDTH = 512 if CUDA else 32
DEPTH = 64 if CUDA else 4
BATCH = 4096 if CUDA else 32
CYCLES = 8
CYCLE_STEPS = 100 if CUDA else 3
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.set_float32_matmul_precision("high")


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


class ChurnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(COLUMNS, WIDTH)
        self.body = nn.Sequential(*[Residual() for _ in range(DEPTH)])
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.out(self.body(self.inp(x))).squeeze(1)


def save_state(path, model, optimizer, score):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "score": score}, path)


def load_state(path, model, optimizer):
    state = torch.load(path, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["score"]


@torch.no_grad()
def validate(model, table, left):
    model.eval()
    score = F.binary_cross_entropy_with_logits(model(table), left).item()
    model.train()
    return score


def main():
    torch.manual_seed(0)
    table = torch.randn(CUSTOMERS, COLUMNS, device=device)
    left = (table[:, :5].sum(1) + 0.5 * torch.randn(CUSTOMERS, device=device) > 1).float()
    held, held_left = table[:BATCH], left[:BATCH]
    model = ChurnNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    best, steps, began = float("inf"), 0, time.time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "best.pt"
        for cycle in range(CYCLES):
            if path.exists():
                best = load_state(path, model, optimizer)
            for i in range(CYCLE_STEPS):
                for group in optimizer.param_groups:
                    group["lr"] = 3e-4 * (1 - i / CYCLE_STEPS)
                pick = torch.randint(BATCH, CUSTOMERS, (BATCH,), device=device)
                loss = F.binary_cross_entropy_with_logits(model(table[pick]), left[pick])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                steps += 1
                if LIMIT and steps >= LIMIT:
                    print("loss", loss.item())
                    return
            score = validate(model, held, held_left)
            print(f"cycle {cycle} loss {loss.item():.4f} held-out {score:.4f} {time.time() - began:.1f}s", flush=True)
            if score < best:
                save_state(path, model, optimizer, score)


if __name__ == "__main__":
    main()
