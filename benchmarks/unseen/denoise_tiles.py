"""Residual denoiser for single-channel detector tiles (noise is added on the fly)."""

import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


@dataclass(frozen=True)
class Config:
    tiles: int = 800
    size: int = 40
    batch: int = 16
    epochs: int = 3
    width: int = 24
    depth: int = 4
    lr: float = 3e-3
    sigma: float = 0.15
    log_every: int = 50


def synthesise(cfg, n, seed):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, 1, cfg.size // 8, cfg.size // 8, generator=g)
    tiles = F.interpolate(coarse, size=(cfg.size, cfg.size), mode="bicubic", align_corners=False)
    return tiles.sigmoid()


class Tiles(Dataset):
    """Indexed with a list of positions, returns the whole batch."""

    def __init__(self, tiles):
        self.tiles = tiles

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, idx):
        return self.tiles[idx]


class Denoiser(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)]
        layers.append(nn.Conv2d(width, 1, 3, padding=1))
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return x - self.net(x)


def psnr(model, clean, noisy):
    model.eval()
    with torch.inference_mode():
        mse = F.mse_loss(model(noisy), clean)
    model.train()
    return -10 * mse.log10().item()


def run(cfg):
    torch.manual_seed(0)
    train_set = Tiles(synthesise(cfg, cfg.tiles, seed=1))
    val_clean = synthesise(cfg, 32, seed=2)
    val_noisy = val_clean + cfg.sigma * torch.randn_like(val_clean)
    sampler = BatchSampler(RandomSampler(train_set), cfg.batch, drop_last=True)
    loader = DataLoader(train_set, sampler=sampler, batch_size=None)

    model = Denoiser(cfg.width, cfg.depth)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.lr, total_steps=cfg.epochs * len(sampler))

    step, running, begin = 0, torch.zeros(()), time.perf_counter()
    for epoch in range(cfg.epochs):
        for clean in loader:
            noisy = clean + cfg.sigma * torch.randn_like(clean)
            loss = F.mse_loss(model(noisy), clean)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            running += loss.detach()
            step += 1
            if step % cfg.log_every == 0:
                print(f"step {step:4d} mse {running.item() / cfg.log_every:.5f} lr {sched.get_last_lr()[0]:.4f}")
                running.zero_()
        print(f"epoch {epoch}: psnr {psnr(model, val_clean, val_noisy):.2f} dB")
    print(f"{(time.perf_counter() - begin) / step * 1e3:.1f} ms/step")


if __name__ == "__main__":
    run(Config())
