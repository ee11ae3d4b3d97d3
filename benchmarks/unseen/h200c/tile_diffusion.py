import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
SIDE = 32
TILES = 12_800 if ON_GPU else 64
BATCH = 64 if ON_GPU else 4
BASE = 128 if ON_GPU else 16
EPOCHS = 3
NOISE_STEPS = 1000
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class Res(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.norm2 = nn.GroupNorm(8, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(e)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class Denoiser(nn.Module):
    def __init__(self, c=BASE):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, c), nn.SiLU(), nn.Linear(c, c))
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.d1, self.d2, self.d3 = Res(c, c, c), Res(c, 2 * c, c), Res(2 * c, 4 * c, c)
        self.mid = Res(4 * c, 4 * c, c)
        self.u3, self.u2, self.u1 = Res(8 * c, 2 * c, c), Res(4 * c, c, c), Res(2 * c, c, c)
        self.out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t):
        freq = torch.exp(-math.log(1e4) * torch.arange(32, device=x.device) / 32)
        angle = t[:, None].float() * freq
        e = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        h1 = self.d1(self.stem(x), e)
        h2 = self.d2(F.avg_pool2d(h1, 2), e)
        h3 = self.d3(F.avg_pool2d(h2, 2), e)
        h = self.u3(torch.cat([self.mid(h3, e), h3], 1), e)
        h = self.u2(torch.cat([F.interpolate(h, scale_factor=2), h2], 1), e)
        h = self.u1(torch.cat([F.interpolate(h, scale_factor=2), h1], 1), e)
        return self.out(h)


class AveragedWeights:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.shadow = [p.detach().cpu().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow, model.parameters()):
            s.lerp_(p.detach().to(s.device), 1 - self.decay)


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    tiles = torch.rand(TILES, 3, SIDE // 4, SIDE // 4, device=device) * 2 - 1
    model = Denoiser().to(device, memory_format=torch.channels_last)
    averaged = AveragedWeights(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=ON_GPU)
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.02, NOISE_STEPS, device=device), 0)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(TILES, device=device)
        for rows in order.split(BATCH):
            x = F.interpolate(tiles[rows], scale_factor=4, mode="bilinear")
            t = torch.randint(NOISE_STEPS, (len(rows),), device=device)
            a = keep[t][:, None, None, None]
            noise = torch.randn_like(x)
            noisy = (a.sqrt() * x + (1 - a).sqrt() * noise).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device, torch.bfloat16):
                guess = model(noisy, t)
            loss = F.mse_loss(guess.float(), noise)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            averaged.update(model)
            step += 1
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if step == LIMIT:
                return


if __name__ == "__main__":
    main()
