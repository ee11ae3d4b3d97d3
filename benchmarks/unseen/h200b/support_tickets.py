"""Routes support tickets to a team: a transformer encoder over token ids."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
VOCAB = 16384 if CUDA else 500
TOKENS = 256 if CUDA else 16
WIDTH = 512 if CUDA else 32
LAYERS = 8 if CUDA else 2
BATCH = 64 if CUDA else 4
TEAMS = 40
STEPS_PER_EPOCH = 200
EPOCHS = 3
SUMMARY_EVERY = 20 if CUDA else 2
WORKERS = 6 if CUDA else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.set_float32_matmul_precision("high")


class Tickets(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(11)
        self.tokens = rng.integers(0, VOCAB, (count, TOKENS), dtype=np.int64)
        self.team = self.tokens[:, :4].sum(1) % TEAMS

    def __len__(self):
        return len(self.team)

    def __getitem__(self, i):
        return torch.from_numpy(self.tokens[i]), self.team[i]


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, WIDTH // 16, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TEAMS)

    def forward(self, tokens):
        x = self.encoder(self.tokens(tokens) + self.places)
        return self.head(x.mean(1))


class RunSummary:
    """Keeps the spread of weights and gradients for the run's dashboard."""

    def __init__(self, bins=64):
        self.bins = bins
        self.rows = []

    def distribution(self, t):
        counts, edges = np.histogram(t.detach().float().cpu().numpy(), bins=self.bins)
        return counts.tolist()

    def record(self, step, model):
        row = {"step": step}
        for name, p in model.named_parameters():
            row["weights/" + name] = self.distribution(p)
            row["gradients/" + name] = self.distribution(p.grad)
        self.rows.append(row)


def main():
    torch.manual_seed(0)
    data = Tickets(BATCH * STEPS_PER_EPOCH)
    loader = DataLoader(
        data,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=CUDA,
        persistent_workers=True,
        prefetch_factor=4,
    )
    model = Router().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=CUDA)
    summary = RunSummary()
    step, began = 0, time.time()
    for epoch in range(EPOCHS):
        for tokens, team in loader:
            tokens = tokens.to(device, non_blocking=True)
            team = team.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(tokens)
            loss = F.cross_entropy(logits.float(), team)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % SUMMARY_EVERY == 0:
                summary.record(step, model)
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {time.time() - began:.1f}s", flush=True)
            if LIMIT and step >= LIMIT:
                print("loss", loss.item(), len(summary.rows))
                return


if __name__ == "__main__":
    main()
