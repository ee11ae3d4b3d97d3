"""Two-fold super-resolution of textures with a residual network and a mix of losses."""

import os
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    steps: int = int(os.environ.get("STEPS", 2400))
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    batch: int = 64 if torch.cuda.is_available() else 4
    patch: int = 96
    width: int = 64
    blocks: int = 8
    lr: float = 2e-4
    w_pixel: float = 1.0
    w_tv: float = 1e-4
    w_perceptual: float = 0.0


def make_textures(n, size, device):
    """Sums of oriented gratings with random colours, as uint8."""
    line = torch.linspace(0, 1, size, device=device)
    yy, xx = torch.meshgrid(line, line, indexing="ij")
    image = torch.zeros(n, 3, size, size, device=device)
    for _ in range(6):
        angle, freq, phase = (torch.rand(n, 1, 1, 1, device=device) for _ in range(3))
        along = torch.cos(6.28 * angle) * xx + torch.sin(6.28 * angle) * yy
        colour = torch.randn(n, 3, 1, 1, device=device)
        image += colour * torch.sin(10 + 120 * freq * along + 6.28 * phase)
    return (127 + 25 * image).clamp(0, 255).byte().contiguous(memory_format=torch.channels_last)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.b = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x), inplace=True))


def make_generator(cfg):
    return nn.Sequential(
        nn.Conv2d(3, cfg.width, 3, padding=1),
        *[Block(cfg.width) for _ in range(cfg.blocks)],
        nn.Conv2d(cfg.width, 4 * cfg.width, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Conv2d(cfg.width, 3, 3, padding=1),
    )


class Features(nn.Module):
    """Fixed feature extractor in the shape of the first three stages of VGG."""

    def __init__(self):
        super().__init__()
        layers, last = [], 3
        for width, depth in ((64, 2), (128, 2), (256, 3)):
            for _ in range(depth):
                layers += [nn.Conv2d(last, width, 3, padding=1), nn.ReLU(inplace=True)]
                last = width
            layers.append(nn.MaxPool2d(2))
        self.net = nn.Sequential(*layers[:-1]).requires_grad_(False)

    def forward(self, x):
        return self.net(x)


class RestorationLoss(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.features = Features()

    def forward(self, restored, target):
        cfg = self.cfg
        pixel = F.l1_loss(restored, target)
        tv = (restored[..., 1:] - restored[..., :-1]).abs().mean() + (
            restored[..., 1:, :] - restored[..., :-1, :]
        ).abs().mean()
        with torch.no_grad():
            wanted = self.features(target)
        perceptual = F.mse_loss(self.features(restored), wanted)
        return cfg.w_pixel * pixel + cfg.w_tv * tv + cfg.w_perceptual * perceptual


def train(cfg):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    images = make_textures(1000 if cfg.device == "cuda" else 64, cfg.patch, cfg.device)
    generator = make_generator(cfg).to(cfg.device, memory_format=torch.channels_last)
    criterion = RestorationLoss(cfg).to(cfg.device, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(generator.parameters(), lr=cfg.lr, fused=True)
    start = time.perf_counter()
    for step in range(cfg.steps):
        high = images[torch.randint(len(images), (cfg.batch,), device=cfg.device)].float() / 255
        low = F.avg_pool2d(high, 2)
        with torch.autocast(cfg.device, torch.bfloat16):
            loss = criterion(generator(low), high)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"{step:5d} loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / cfg.steps:.1f} ms a step")


if __name__ == "__main__":
    train(Config())
