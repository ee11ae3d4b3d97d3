"""gan.py tuned by hand: the same models, data, order and flags, the same losses up to rounding.

    python gan_hand.py

What was changed: channels_last, TF32, cudnn.benchmark; the generator, both losses of the discriminator as one,
and the generator's loss are a compiled function each, the last without the discriminator's own gradients, which
nobody uses; the whole step, both fused Adams included, is one CUDA graph; loader workers, pinned memory, bytes
instead of floats on the way to the device; no .item() but where losses are printed. No bf16: this game amplifies
rounding, and with bf16 its losses part.
"""

import time

import torch
import torch.nn.functional as F
from capture import Captured
from gan import NOISE, Discriminator, DiscsDataset, Generator, parse_args, weights_init
from prefetch import loader_options
from torch.utils.data import DataLoader


class ByteDiscsDataset(DiscsDataset):
    def __getitem__(self, i):
        image = self.images[i % len(self.images)]
        return image.flip(-1) if i // len(self.images) % 2 else image


def main():
    args = parse_args(log_every=50)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    options = loader_options(device, workers=2)
    dataset = ByteDiscsDataset(args.pool)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True, **options)
    layout = torch.channels_last
    net_g = Generator(args.width).apply(weights_init).to(device, memory_format=layout)
    net_d = Discriminator(args.width).apply(weights_init).to(device, memory_format=layout)
    # Of this one, whose input is 1x1, Inductor 2.11 expects a gradient in a layout that cuDNN does not give.
    net_g.main[0].to(memory_format=torch.contiguous_format)
    adam = {"lr": args.lr, "betas": (0.5, 0.999), "fused": True, "capturable": cuda}
    optimizer_d = torch.optim.Adam(net_d.parameters(), **adam)
    optimizer_g = torch.optim.Adam(net_g.parameters(), **adam)

    def generate(noise):
        return net_g(noise)

    def discriminate(images, fake):
        real = (images.float() / 127.5 - 1).contiguous(memory_format=layout)
        ones, zeros = torch.ones(len(real), device=device), torch.zeros(len(real), device=device)
        return F.binary_cross_entropy(net_d(real), ones) + F.binary_cross_entropy(net_d(fake), zeros)

    def judge(fake):
        judged = net_d(fake)
        return F.binary_cross_entropy(judged, torch.ones_like(judged)), judged.detach().mean()

    if cuda:
        generate, discriminate, judge = (torch.compile(f, dynamic=False) for f in (generate, discriminate, judge))
    images = torch.zeros(args.batch_size, 3, 64, 64, dtype=torch.uint8, device=device)
    noise = torch.zeros(args.batch_size, NOISE, 1, 1, device=device)
    last_d, last_g, last_judged = torch.zeros(3, device=device).unbind()

    def body():
        optimizer_d.zero_grad(set_to_none=True)
        optimizer_g.zero_grad(set_to_none=True)
        fake = generate(noise)
        loss_d = discriminate(images, fake.detach())
        loss_d.backward()
        optimizer_d.step()
        net_d.requires_grad_(False)
        loss_g, judged = judge(fake)
        loss_g.backward()
        net_d.requires_grad_(True)
        optimizer_g.step()
        last_d.copy_(loss_d.detach())
        last_g.copy_(loss_g.detach())
        last_judged.copy_(judged)

    train = Captured(body, device)
    step, start = 0, time.perf_counter()
    while step < args.steps:
        for batch in loader:
            images.copy_(batch, non_blocking=True)
            noise.normal_()
            train()
            step += 1
            if step % args.log_every == 0:
                losses = f"loss_d {last_d.item():.4f} loss_g {last_g.item():.4f} judged {last_judged.item():.4f}"
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                print(f"step {step} {losses} {ms:.2f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
