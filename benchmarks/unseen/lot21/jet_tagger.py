"""Quark/gluon/W/top tagging from high-level jet features with a wide residual MLP.

The events are toy events: features are nonlinear functions of a few latent numbers.
"""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
FEATURES = 64
CLASSES = 4
WIDTH = 4096 if CUDA else 64
LAYERS = 5 if CUDA else 2
BATCH = 16384 if CUDA else 32
EVENTS = 2_000_000 if CUDA else 500
HELD_OUT = 65536 if CUDA else 100
STEPS = 700 if CUDA else 5
EVAL_EVERY = 350


@torch.no_grad()
def toy_events(n):
    g = torch.Generator(device=device).manual_seed(17)
    label = torch.randint(0, CLASSES, (n,), device=device, generator=g)
    centre = torch.randn(CLASSES, 12, device=device, generator=g)
    mix = torch.randn(12, FEATURES, device=device, generator=g) / 12 ** 0.5
    bend = torch.randn(FEATURES, FEATURES, device=device, generator=g) / FEATURES ** 0.5
    latent = 0.6 * centre[label] + torch.randn(n, 12, device=device, generator=g)
    x = torch.sin(latent @ mix * 2) @ bend + 0.3 * torch.randn(n, FEATURES, device=device, generator=g)
    return (x - x.mean(0)) / x.std(0), label


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.b(F.silu(self.a(self.norm(x))))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATURES, WIDTH)
        self.body = nn.Sequential(*(Residual() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.body(self.inp(x))))


@torch.no_grad()
def evaluate(net, x, y):
    net.eval()
    right = torch.zeros((), device=device)
    for xb, yb in zip(x.split(BATCH), y.split(BATCH)):
        with torch.autocast(device, dtype=torch.bfloat16):
            right += (net(xb).argmax(1) == yb).sum()
    net.train()
    return right.item() / len(y)


def main():
    torch.manual_seed(0)
    x, y = toy_events(EVENTS)
    x_val, y_val = x[:HELD_OUT], y[:HELD_OUT]
    x, y = x[HELD_OUT:], y[HELD_OUT:]
    net = Tagger().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=0.01, fused=CUDA)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-4, total_steps=STEPS, pct_start=0.1)
    fast = torch.compile(net) if CUDA else net
    meter = torch.zeros((), device=device)
    start = time.time()
    for step in range(1, STEPS + 1):
        pick = torch.randint(0, len(x), (min(BATCH, len(x)),), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(fast(x[pick]).float(), y[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        meter += loss.detach()
        if step % 50 == 0:
            print(f"step {step} loss {meter.item() / 50:.4f} {time.time() - start:.1f}s", flush=True)
            meter.zero_()
        if step % EVAL_EVERY == 0 or step == STEPS:
            print(f"step {step} held-out accuracy {evaluate(net, x_val, y_val):.4f}", flush=True)


if __name__ == "__main__":
    main()
