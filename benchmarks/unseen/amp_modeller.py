from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


@dataclass
class Config:
    sample_rate: int = 16000
    clip_seconds: float = 0.5
    clips: int = 128
    batch_size: int = 8
    channels: int = 12
    kernel: int = 3
    dilations: tuple = (1, 2, 4, 8, 16, 32)
    cab_taps: int = 1024
    lr: float = 2e-3
    epochs: int = 6
    seed: int = 0


def pluck(rng, cfg):
    n = int(cfg.sample_rate * cfg.clip_seconds)
    t = np.arange(n) / cfg.sample_rate
    f0 = rng.uniform(80, 400)
    decay = rng.uniform(4, 30)
    envelope = np.exp(-decay * t)
    partials = [np.sin(2 * np.pi * f0 * k * t + rng.uniform(0, 6.28)) / k for k in range(1, 6)]
    return (sum(partials) * envelope * rng.uniform(0.2, 0.8)).astype(np.float32)


def make_clips(cfg):
    rng = np.random.default_rng(cfg.seed)
    dry = np.stack([pluck(rng, cfg) for _ in range(cfg.clips)])
    driven = np.tanh(4.0 * dry) * 0.7 + 0.1 * dry
    room = rng.standard_normal(600) * np.exp(-np.arange(600) / 80.0) * 0.05
    room[0] = 1.0
    wet = np.stack([np.convolve(row, room)[: row.size] for row in driven]).astype(np.float32)
    return torch.from_numpy(dry)[:, None], torch.from_numpy(wet)[:, None]


class Block(nn.Module):
    def __init__(self, channels, kernel, dilation):
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.conv = nn.Conv1d(channels, channels, kernel, dilation=dilation, bias=False)
        self.mix = nn.Conv1d(channels, channels, 1, bias=False)

    def forward(self, x):
        y = self.conv(nn.functional.pad(x, (self.pad, 0)))
        return x + self.mix(torch.tanh(y))


class Cabinet(nn.Module):
    def __init__(self, taps):
        super().__init__()
        self.taps = taps
        ir = torch.randn(taps) * torch.exp(-torch.arange(taps) / 60.0) * 0.02
        ir[0] = 1.0
        self.ir = nn.Parameter(ir)

    def forward(self, x):
        x = nn.functional.pad(x, (self.taps - 1, 0))
        return nn.functional.conv1d(x, self.ir.flip(0)[None, None])


class AmpModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Conv1d(1, cfg.channels, 1, bias=False)
        self.blocks = nn.Sequential(*[Block(cfg.channels, cfg.kernel, d) for d in cfg.dilations])
        self.out = nn.Conv1d(cfg.channels, 1, 1, bias=False)
        self.cab = Cabinet(cfg.cab_taps)

    def forward(self, x):
        return self.cab(self.out(self.blocks(self.inp(x))))


def esr(pred, target):
    return ((pred - target) ** 2).sum() / (target**2).sum()


def train(cfg):
    torch.manual_seed(cfg.seed)
    dry, wet = make_clips(cfg)
    held_out = cfg.batch_size
    train_x, train_y = dry[held_out:], wet[held_out:]
    model = AmpModel(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    step = 0
    for epoch in range(cfg.epochs):
        model.train()
        order = torch.randperm(len(train_x))
        for idx in order.split(cfg.batch_size):
            loss = esr(model(train_x[idx]), train_y[idx])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} esr {loss.item():.4f}")
        model.eval()
        with torch.no_grad():
            val = esr(model(dry[:held_out]), wet[:held_out])
        print(f"epoch {epoch} val esr {val.item():.4f}")


if __name__ == "__main__":
    train(Config())
