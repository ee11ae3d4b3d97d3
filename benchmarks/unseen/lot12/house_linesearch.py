"""Price regression with SGD whose step length comes from an Armijo line search."""

import time

import torch
from torch import nn
from torch.nn import functional as F


class ArmijoSGD(torch.optim.Optimizer):
    def __init__(self, params, max_lr=10.0, c=0.1, shrink=0.7, tries=50):
        super().__init__(params, dict(max_lr=max_lr, c=c, shrink=shrink, tries=tries))
        self.params = [p for group in self.param_groups for p in group["params"]]
        self.lr = max_lr

    def step(self, closure):
        group = self.param_groups[0]
        self.zero_grad()
        loss = closure()
        loss.backward()
        with torch.no_grad():
            before = [p.clone() for p in self.params]
            grads = [p.grad for p in self.params]
            slope = sum(g.square().sum() for g in grads).item()
            value = loss.item()
            lr = group["max_lr"]
            for _ in range(group["tries"]):
                for p, old, g in zip(self.params, before, grads):
                    torch.add(old, g, alpha=-lr, out=p)
                if closure().item() <= value - group["c"] * lr * slope:
                    break
                lr *= group["shrink"]
            self.lr = lr
        return loss


class PriceNet(nn.Module):
    def __init__(self, features=40, width=192):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x)[:, 0]


def make_houses(count, features=40, seed=0):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=gen) * 2
    w = torch.randn(features, 8, generator=gen) / features**0.5
    y = torch.tanh(x @ w).sum(1) * 2 + 0.1 * torch.randn(count, generator=gen)
    return x, y


def main(epochs=8, batch_size=512):
    torch.manual_seed(0)
    x, y = make_houses(15000)
    model = PriceNet()
    optimizer = ArmijoSGD(model.parameters())
    start, step = time.time(), 0
    for epoch in range(1, epochs + 1):
        total = 0.0
        for chunk in torch.randperm(len(x)).split(batch_size):
            xb, yb = x[chunk], y[chunk]
            loss = optimizer.step(lambda: F.mse_loss(model(xb), yb))
            total += loss.item() * len(chunk)
            step += 1
        print(f"epoch {epoch} step {step} loss {total / len(x):.4f} lr {optimizer.lr:.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
