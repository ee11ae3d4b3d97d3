"""Vector-quantised autoencoder for small grey-scale textures."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_textures(n, size, generator):
    base = torch.randn(n, 1, size // 4, size // 4, generator=generator)
    smooth = F.interpolate(base, size=(size, size), mode="bilinear", align_corners=False)
    return (smooth + 0.1 * torch.randn(n, 1, size, size, generator=generator)).tanh()


class VectorQuantizer(nn.Module):
    def __init__(self, n_codes=256, dim=32, beta=0.25):
        super().__init__()
        self.codebook = nn.Embedding(n_codes, dim)
        nn.init.uniform_(self.codebook.weight, -1.0 / n_codes, 1.0 / n_codes)
        self.beta = beta

    def nearest(self, flat):
        with torch.no_grad():
            diff = flat.unsqueeze(1) - self.codebook.weight.unsqueeze(0)
            return diff.pow(2).sum(dim=-1).argmin(dim=1)

    def forward(self, z):
        b, c, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, c)
        codes = self.nearest(flat)
        q = self.codebook(codes)
        loss = F.mse_loss(q, flat.detach()) + self.beta * F.mse_loss(flat, q.detach())
        q = flat + (q - flat).detach()
        return q.view(b, h, w, c).permute(0, 3, 1, 2), loss, codes


class TextureVQ(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, dim, 4, stride=2, padding=1),
        )
        self.quantizer = VectorQuantizer(dim=dim)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(dim, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )

    def forward(self, x):
        q, vq_loss, codes = self.quantizer(self.encoder(x))
        return self.decoder(q), vq_loss, codes


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = make_textures(800, 32, generator)
    model = TextureVQ()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(4):
        order = torch.randperm(len(images), generator=generator)
        for step, idx in enumerate(order.split(16)):
            batch = images[idx]
            recon, vq_loss, codes = model(batch)
            loss = F.mse_loss(recon, batch) + vq_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                used = codes.unique().numel()
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} codes {used}", flush=True)


if __name__ == "__main__":
    main()
