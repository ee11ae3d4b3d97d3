"""Train a DCGAN on 64x64 images: a generator and a discriminator, an optimizer each.

    python gan.py
    python gan.py --tiny --steps 10        # thin networks, for a CPU

The images are made at the start: soft coloured discs. The loop is that of the usual tutorial.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NOISE = 100


class DiscsDataset(Dataset):
    """`length` readings of a pool of images, kept as bytes."""

    def __init__(self, pool=1024, length=25600):
        generator = torch.Generator().manual_seed(1)
        axis = torch.linspace(-1, 1, 64)
        place = torch.rand(pool, 2, 1, 1, generator=generator) * 1.2 - 0.6
        radius = torch.rand(pool, 1, 1, generator=generator) * 0.3 + 0.2
        away = ((axis[:, None] - place[:, 0]) ** 2 + (axis[None, :] - place[:, 1]) ** 2).sqrt()
        disc = torch.sigmoid((radius - away) * 30).unsqueeze(1)
        inside, outside = torch.rand(2, pool, 3, 1, 1, generator=generator)
        self.images = (255 * (disc * inside + (1 - disc) * outside)).byte()
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        image = self.images[i % len(self.images)].float() / 127.5 - 1
        return image.flip(-1) if i // len(self.images) % 2 else image


def weights_init(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


class Generator(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers = [nn.ConvTranspose2d(NOISE, width * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(width * 8), nn.ReLU(True)]
        for inner in (8, 4, 2):
            outer = width * inner // 2
            layers += [nn.ConvTranspose2d(width * inner, outer, 4, 2, 1, bias=False)]
            layers += [nn.BatchNorm2d(outer), nn.ReLU(True)]
        self.main = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
        for inner in (1, 2, 4):
            outer = width * inner * 2
            layers += [nn.Conv2d(width * inner, outer, 4, 2, 1, bias=False)]
            layers += [nn.BatchNorm2d(outer), nn.LeakyReLU(0.2, inplace=True)]
        self.main = nn.Sequential(*layers, nn.Conv2d(width * 8, 1, 4, 1, 0, bias=False), nn.Sigmoid())

    def forward(self, images):
        return self.main(images).view(-1)


def parse_args(log_every=10):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="thin networks, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.width, args.pool = 128, 1024
    if args.tiny:
        args.width, args.pool, args.batch_size = 4, 64, 8
    return args


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader = DataLoader(DiscsDataset(args.pool), batch_size=args.batch_size, shuffle=True, drop_last=True)
    net_g = Generator(args.width).apply(weights_init).to(device)
    net_d = Discriminator(args.width).apply(weights_init).to(device)
    criterion = nn.BCELoss()
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=args.lr, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=args.lr, betas=(0.5, 0.999))

    step, start = 0, time.perf_counter()
    while step < args.steps:
        for images in loader:
            # Discriminator: real images, then made ones.
            net_d.zero_grad()
            real = images.to(device)
            label = torch.full((len(real),), 1.0, device=device)
            loss_real = criterion(net_d(real), label)
            loss_real.backward()
            noise = torch.randn(len(real), NOISE, 1, 1, device=device)
            fake = net_g(noise)
            label.fill_(0.0)
            loss_fake = criterion(net_d(fake.detach()), label)
            loss_fake.backward()
            loss_d = loss_real + loss_fake
            optimizer_d.step()
            # Generator: what the discriminator now says of them.
            net_g.zero_grad()
            label.fill_(1.0)
            judged = net_d(fake)
            loss_g = criterion(judged, label)
            loss_g.backward()
            judged = judged.mean().item()
            optimizer_g.step()
            step += 1
            if step % args.log_every == 0:
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                losses = f"loss_d {loss_d.item():.4f} loss_g {loss_g.item():.4f}"
                print(f"step {step} {losses} judged {judged:.4f} {ms:.2f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
