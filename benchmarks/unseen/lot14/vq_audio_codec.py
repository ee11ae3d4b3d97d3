"""Vector-quantised autoencoder for short audio frames."""

import math
import time

import torch
import torch.nn.functional as F
from torch import nn


def make_audio(n, length=2048, seed=0):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length) / 8000
    freq = 80 + 900 * torch.rand(n, 3, generator=g)
    phase = 2 * math.pi * torch.rand(n, 3, generator=g)
    wave = torch.sin(2 * math.pi * freq[..., None] * t + phase[..., None]).mean(1)
    return (wave + 0.02 * torch.randn(n, length, generator=g)).unsqueeze(1)


class Quantizer(nn.Module):
    def __init__(self, codes=512, dim=64, decay=0.99):
        super().__init__()
        self.decay = decay
        self.register_buffer("codebook", torch.randn(codes, dim) * 0.1)
        self.register_buffer("usage", torch.ones(codes))
        self.register_buffer("sums", self.codebook.clone())

    @torch.no_grad()
    def assign(self, flat):
        dist = ((flat[:, None, :] - self.codebook[None, :, :]) ** 2).sum(-1)
        return dist.argmin(1)

    @torch.no_grad()
    def update(self, flat, index):
        self.usage.mul_(self.decay).index_add_(0, index, torch.full((len(index),), 1 - self.decay))
        self.sums.mul_(self.decay).index_add_(0, index, flat * (1 - self.decay))
        self.codebook.copy_(self.sums / self.usage.clamp_min(1e-3)[:, None])

    def forward(self, z):
        flat = z.transpose(1, 2).reshape(-1, z.shape[1])
        index = self.assign(flat)
        q = self.codebook[index].view(z.shape[0], z.shape[2], -1).transpose(1, 2)
        if self.training:
            self.update(flat.detach(), index)
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit


class Codec(nn.Module):
    def __init__(self, width=32, dim=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, width, 16, stride=8, padding=4),
            nn.ELU(),
            nn.Conv1d(width, width, 8, stride=4, padding=2),
            nn.ELU(),
            nn.Conv1d(width, dim, 3, padding=1),
        )
        self.quantizer = Quantizer(dim=dim)
        self.decoder = nn.Sequential(
            nn.Conv1d(dim, width, 3, padding=1),
            nn.ELU(),
            nn.ConvTranspose1d(width, width, 8, stride=4, padding=2),
            nn.ELU(),
            nn.ConvTranspose1d(width, 1, 16, stride=8, padding=4),
        )

    def forward(self, wave):
        q, commit = self.quantizer(self.encoder(wave))
        return self.decoder(q), commit


def main():
    torch.manual_seed(0)
    audio = make_audio(480)
    model = Codec()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = 4
    for epoch in range(2):
        order = torch.randperm(len(audio))
        start = time.time()
        for step in range(len(audio) // batch):
            wave = audio[order[step * batch : (step + 1) * batch]]
            out, commit = model(wave)
            loss = F.l1_loss(out, wave) + 0.25 * commit
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch}: {step + 1} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
