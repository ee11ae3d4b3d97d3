"""Domain-adversarial facies classification: labelled wells -> a new, unlabelled field."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ReverseGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.weight * grad, None


class DANN(nn.Module):
    def __init__(self, n_in, width, n_classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(n_in, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(width, n_classes)
        self.domain = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, x, weight):
        h = self.features(x)
        return self.classifier(h), self.domain(ReverseGrad.apply(h, weight))


def make_field(n, n_in, n_classes, shift, g):
    centers = torch.randn(n_classes, n_in, generator=torch.Generator().manual_seed(7))
    y = torch.randint(n_classes, (n,), generator=g)
    x = centers[y] + 0.8 * torch.randn(n, n_in, generator=g) + shift
    return x, y


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        pred = model(x, 0.0)[0].argmax(1)
    model.train()
    return (pred == y).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--source-size", type=int, default=8192)
    p.add_argument("--target-size", type=int, default=500_000)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=1e-3)
    args = p.parse_args()

    torch.manual_seed(0)
    g = torch.Generator().manual_seed(3)
    xs, ys = make_field(args.source_size, 24, 9, 0.0, g)
    xt, yt = make_field(args.target_size, 24, 9, 0.6, g)

    source_loader = DataLoader(TensorDataset(xs, ys), batch_size=args.batch_size, shuffle=True, drop_last=True)
    target_loader = DataLoader(TensorDataset(xt), batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = DANN(24, args.width, 9)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    n_steps = args.epochs * len(source_loader)
    is_source = torch.zeros(args.batch_size, dtype=torch.long)
    is_target = torch.ones(args.batch_size, dtype=torch.long)

    step, t0 = 0, time.perf_counter()
    for epoch in range(args.epochs):
        for x, y in source_loader:
            (x_new,) = next(iter(target_loader))
            weight = 2.0 / (1.0 + 2.718 ** (-10 * step / n_steps)) - 1.0

            logits, dom_s = model(x, weight)
            _, dom_t = model(x_new, weight)
            loss_cls = F.cross_entropy(logits, y)
            loss_dom = F.cross_entropy(dom_s, is_source) + F.cross_entropy(dom_t, is_target)
            loss = loss_cls + loss_dom

            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                print(f"{step:4d}/{n_steps} cls {loss_cls.item():.3f} dom {loss_dom.item():.3f}")
        print(f"epoch {epoch}: target accuracy {accuracy(model, xt[:4096], yt[:4096]):.3f}")
    print(f"{(time.perf_counter() - t0) / step * 1000:.1f} ms per step")


if __name__ == "__main__":
    main()
