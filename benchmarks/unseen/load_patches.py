import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    series: int = 24
    hours: int = 2400
    context: int = 192
    horizon: int = 24
    patch: int = 8
    dim: int = 128
    heads: int = 4
    layers: int = 3
    batch_size: int = 64
    steps_per_epoch: int = 50
    epochs: int = 2
    lr: float = 1e-3


def synth_load(cfg):
    t = torch.arange(cfg.hours, dtype=torch.float32)
    phase = torch.rand(cfg.series, 1) * 2 * math.pi
    daily = torch.sin(2 * math.pi * t / 24 + phase)
    weekly = 0.4 * torch.sin(2 * math.pi * t / 168 + 2 * phase)
    noise = 0.1 * torch.randn(cfg.series, cfg.hours)
    return (daily + weekly + noise) * (0.5 + torch.rand(cfg.series, 1))


class PatchForecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.patch = cfg.patch
        n = cfg.context // cfg.patch
        self.embed = nn.Linear(cfg.patch, cfg.dim)
        self.pos = nn.Parameter(torch.randn(n, cfg.dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            cfg.dim,
            cfg.heads,
            4 * cfg.dim,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.head = nn.Linear(n * cfg.dim, cfg.horizon)

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        z = ((x - mean) / std).unflatten(1, (-1, self.patch))
        z = self.encoder(self.embed(z) + self.pos)
        return self.head(z.flatten(1)) * std + mean


def evaluate(model, windows, cfg):
    model.eval()
    with torch.inference_mode():
        pred = model(windows[:, : cfg.context])
        mae = (pred - windows[:, cfg.context :]).abs().mean().item()
    model.train()
    return mae


def main(cfg):
    torch.manual_seed(3)
    load = synth_load(cfg)
    split = cfg.hours - 480
    span = cfg.context + cfg.horizon
    train = load[:, :split].unfold(1, span, 1)
    valid = load[:, split:].unfold(1, span, cfg.horizon).reshape(-1, span)
    model = PatchForecaster(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    total = cfg.epochs * cfg.steps_per_epoch
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, cfg.lr, total_steps=total)
    step = 0
    for epoch in range(cfg.epochs):
        for _ in range(cfg.steps_per_epoch):
            rows = torch.randint(train.size(0), (cfg.batch_size,))
            starts = torch.randint(train.size(1), (cfg.batch_size,))
            window = train[rows, starts]
            pred = model(window[:, : cfg.context])
            loss = nn.functional.huber_loss(pred, window[:, cfg.context :])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step} huber {loss.item():.4f}")
        print(f"epoch {epoch} valid mae {evaluate(model, valid, cfg):.4f}")


if __name__ == "__main__":
    main(Config())
