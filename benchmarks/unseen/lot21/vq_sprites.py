"""VQ-VAE on procedurally generated sprites (first stage of a token-based generator)."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
SIDE = 64 if CUDA else 16
BATCH = 64 if CUDA else 4
CH = 128 if CUDA else 8
CODES = 2048 if CUDA else 32
CODE_DIM = 64 if CUDA else 8
N_SPRITES = 10000 if CUDA else 40
STEPS = 2000 if CUDA else 4


def sprites(n):
    """Mirrored random cells in two or three colours, enlarged to the image size."""
    g = torch.Generator().manual_seed(9)
    half = torch.rand(n, 1, 8, 4, generator=g)
    cells = torch.cat([half, half.flip(-1)], -1)
    colour = torch.rand(n, 3, 1, 1, generator=g)
    shade = torch.rand(n, 3, 1, 1, generator=g)
    img = torch.where(cells > 0.55, colour, torch.where(cells > 0.4, shade, torch.ones(1)))
    img = F.interpolate(img, size=(SIDE, SIDE), mode="nearest")
    return img * 2 - 1


class Codebook(nn.Module):
    def __init__(self, beta=0.25):
        super().__init__()
        self.table = nn.Parameter(torch.randn(CODES, CODE_DIM) * 0.2)
        self.beta = beta

    def nearest(self, flat):
        with torch.no_grad():
            distance = (flat.unsqueeze(1) - self.table.unsqueeze(0)).pow(2).sum(-1)
            return distance.argmin(1)

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c).float()
        code = self.nearest(flat)
        q = F.embedding(code, self.table)
        loss = F.mse_loss(q, flat.detach()) + self.beta * F.mse_loss(flat, q.detach())
        q = flat + (q - flat).detach()
        return q.view(b, h, w, c).permute(0, 3, 1, 2), code, loss


class Res(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.ReLU(), nn.Conv2d(CH, CH, 3, 1, 1), nn.ReLU(), nn.Conv2d(CH, CH, 1))

    def forward(self, x):
        return x + self.net(x)


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, CH, 4, 2, 1), nn.ReLU(), nn.Conv2d(CH, CH, 4, 2, 1), Res(), Res(), nn.Conv2d(CH, CODE_DIM, 1))
        self.book = Codebook()
        self.dec = nn.Sequential(
            nn.Conv2d(CODE_DIM, CH, 1), Res(), Res(), nn.ConvTranspose2d(CH, CH, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(CH, 3, 4, 2, 1))

    def forward(self, x):
        q, code, vq = self.book(self.enc(x))
        return self.dec(q), code, vq


def perplexity(counts):
    p = counts / counts.sum()
    return torch.exp(-(p * (p + 1e-9).log()).sum())


def main():
    torch.manual_seed(0)
    images = sprites(N_SPRITES).to(device).contiguous(memory_format=torch.channels_last)
    model = VQVAE().to(device, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), fused=CUDA)
    rec_sum = torch.zeros((), device=device)
    used = torch.zeros(CODES, device=device)
    one = torch.ones(1, device=device)
    t0 = time.time()
    for step in range(1, STEPS + 1):
        x = images[torch.randint(0, N_SPRITES, (BATCH,), device=device)]
        with torch.autocast(device, dtype=torch.bfloat16):
            out, code, vq = model(x)
        rec = F.mse_loss(out.float(), x)
        opt.zero_grad(set_to_none=True)
        (rec + vq).backward()
        opt.step()
        rec_sum += rec.detach()
        used.scatter_add_(0, code, one.expand(len(code)))
        if step % 100 == 0 or step == STEPS:
            print(f"step {step} rec {rec_sum.item() / 100:.4f} perplexity {perplexity(used).item():.1f} "
                  f"{(time.time() - t0) / step * 1e3:.2f} ms", flush=True)
            rec_sum.zero_()
            used.zero_()


if __name__ == "__main__":
    main()
