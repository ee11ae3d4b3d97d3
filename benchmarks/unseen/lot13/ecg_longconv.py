"""Rhythm classification of single-lead ECG strips with global convolutions."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTH = 400
CLASSES = 3


def make_strips(n, generator):
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    t = torch.arange(LENGTH) / 100.0
    rate = 1.0 + 0.5 * y.float() + 0.1 * torch.rand(n, generator=generator)
    phase = torch.rand(n, 1, generator=generator)
    beats = torch.cos(math.pi * (t[None] * rate[:, None] + phase)).abs().pow(24)
    return beats + 0.3 * torch.randn(n, LENGTH, generator=generator), y


class GlobalConv(nn.Module):
    def __init__(self, channels, length):
        super().__init__()
        decay = torch.exp(-torch.linspace(0, 5, length))
        self.kernel = nn.Parameter(torch.randn(channels, length) * decay / math.sqrt(length))
        self.skip = nn.Parameter(torch.ones(channels, 1))

    def forward(self, u):
        length = u.shape[-1]
        k = self.kernel.flip(-1).unsqueeze(1)
        y = F.conv1d(F.pad(u, (length - 1, 0)), k, groups=u.shape[1])
        return y + u * self.skip


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.mix_time = GlobalConv(channels, LENGTH)
        self.mix_channels = nn.Linear(channels, channels)

    def forward(self, x):
        h = self.mix_time(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mix_channels(F.gelu(h))


class RhythmNet(nn.Module):
    def __init__(self, channels=24, depth=2):
        super().__init__()
        self.embed = nn.Linear(1, channels)
        self.blocks = nn.Sequential(*[Block(channels) for _ in range(depth)])
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x):
        h = self.blocks(self.embed(x.unsqueeze(-1)))
        return self.head(h.mean(dim=1))


def main():
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    x, y = make_strips(960, generator)
    model = RhythmNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)

    for epoch in range(2):
        order = torch.randperm(len(x), generator=generator)
        for step, idx in enumerate(order.split(8)):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
