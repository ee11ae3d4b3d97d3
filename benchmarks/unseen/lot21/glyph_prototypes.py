"""Metric learning on hand-drawn-like glyphs: pull every class to its centre, push the centres apart."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
N_CLASSES = 100 if CUDA else 6
PER_CLASS = 200 if CUDA else 10
BATCH = 1024 if CUDA else 24
WIDTH = 128 if CUDA else 8
DIM = 128
SIZE = 32


def draw_glyphs(seed=1):
    """Each class is a random smooth stroke; samples are shifted and noisy copies of it."""
    g = torch.Generator().manual_seed(seed)
    stroke = torch.randn(N_CLASSES, 2, 6, generator=g).cumsum(-1)
    stroke = F.interpolate(stroke, size=40, mode="linear", align_corners=True)
    stroke = stroke / stroke.abs().amax((1, 2), keepdim=True)
    label = torch.arange(N_CLASSES).repeat_interleave(PER_CLASS)
    points = stroke[label] * (0.8 + 0.1 * torch.randn(len(label), 2, 1, generator=g))
    points = points + 0.05 * torch.randn(points.shape, generator=g)
    cell = ((points + 1) / 2 * (SIZE - 1)).round().long().clamp(0, SIZE - 1)
    image = torch.zeros(len(label), SIZE * SIZE)
    image.scatter_(1, cell[:, 0] * SIZE + cell[:, 1], 1.0)
    image = image.view(-1, 1, SIZE, SIZE)
    return F.avg_pool2d(image, 3, 1, 1) * 3, label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH

        def conv(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        self.body = nn.Sequential(conv(1, w, 1), conv(w, w, 2), conv(w, 2 * w, 1), conv(2 * w, 2 * w, 2),
                                  conv(2 * w, 4 * w, 2))
        self.proj = nn.Linear(4 * w, DIM)

    def forward(self, x):
        return self.proj(self.body(x).mean((2, 3)))


def centre_loss(z, y, margin=1.0):
    spread, centres = [], []
    for c in range(N_CLASSES):
        member = y == c
        if member.sum() < 2:
            continue
        zc = z[member]
        centre = zc.mean(0)
        spread.append((zc - centre).pow(2).sum(1).mean())
        centres.append(centre)
    pull = torch.stack(spread).mean()
    centres = F.normalize(torch.stack(centres), dim=1)
    sim = centres @ centres.t()
    k = sim.shape[0]
    push = (F.relu(sim + margin).pow(2).sum() - (1 + margin) ** 2 * k) / (k * (k - 1))
    return pull, push


def train(args):
    torch.manual_seed(0)
    images, labels = draw_glyphs()
    images = images.to(device).contiguous(memory_format=torch.channels_last)
    labels = labels.to(device)
    net = Net().to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, nesterov=True, fused=CUDA)
    hist = torch.zeros(2, device=device)
    tic = time.perf_counter()
    for it in range(1, args.steps + 1):
        idx = torch.randint(0, len(labels), (BATCH,), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            z = net(images[idx])
        pull, push = centre_loss(F.normalize(z.float(), dim=1) * 4, labels[idx])
        loss = args.pull * pull + push
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        hist += torch.stack([pull.detach(), push.detach()])
        if it % 50 == 0 or it == args.steps:
            a, b = (hist / 50).tolist()
            print(f"it {it} pull {a:.4f} push {b:.4f} {(time.perf_counter() - tic) / it * 1e3:.1f} ms/it", flush=True)
            hist.zero_()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=800 if CUDA else 5)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--pull", type=float, default=0.5)
    train(p.parse_args())
