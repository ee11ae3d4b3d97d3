"""Beat classification of multi-lead ECG with layers of leaky integrators (per-channel time constants)."""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
BATCH = 64 if CUDA else 4
SAMPLES = 256 if CUDA else 32
WIDTH = 512 if CUDA else 16
DEPTH = 3 if CUDA else 2
STEPS = 700 if CUDA else 4
N_RECORDS = 8192 if CUDA else 64
LEADS, RHYTHMS = 12, 5


def make_records(n):
    """Sum of P, QRS and T waves with rhythm dependent timing, seen from twelve directions."""
    g = torch.Generator().manual_seed(3)
    rhythm = torch.randint(0, RHYTHMS, (n,), generator=g)
    t = torch.linspace(0, 2, SAMPLES)
    rate = 0.8 + 0.35 * rhythm.float() + 0.1 * torch.randn(n, generator=g)
    phase = (t[None] * rate[:, None] + torch.rand(n, 1, generator=g)) % 1.0
    waves = []
    for centre, width, height in ((0.2, 0.03, 0.2), (0.4, 0.012, 1.0), (0.44, 0.015, -0.4), (0.68, 0.05, 0.35)):
        waves.append(height * torch.exp(-((phase - centre) / width) ** 2))
    waves = torch.stack(waves, -1)
    mix = torch.randn(n, 4, LEADS, generator=g) * 0.3 + 1.0
    x = torch.bmm(waves, mix) + 0.05 * torch.randn(n, SAMPLES, LEADS, generator=g)
    return x, rhythm


class LeakyIntegrator(nn.Module):
    """h[t] = a * h[t-1] + (1 - a) * u[t], one a for every channel."""

    def __init__(self, channels):
        super().__init__()
        tau = torch.exp(torch.linspace(math.log(2.0), math.log(64.0), channels))
        self.logit = nn.Parameter(torch.log(torch.expm1(1.0 / tau)))

    def forward(self, u):
        a = torch.exp(-F.softplus(self.logit))
        drive = (1 - a) * u.float()
        h = torch.zeros_like(drive[:, 0])
        trace = []
        for d in drive.unbind(1):
            h = a * h + d
            trace.append(h)
        return torch.stack(trace, 1)


class Layer(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.inp = nn.Linear(channels, channels)
        self.mem = LeakyIntegrator(channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x):
        return x + self.out(F.gelu(self.mem(self.inp(self.norm(x)))))


class BeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(LEADS, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, RHYTHMS)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def main():
    torch.manual_seed(0)
    x_all, y_all = make_records(N_RECORDS)
    x_all, y_all = x_all.to(device), y_all.to(device)
    model = BeatNet().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=CUDA)
    acc = torch.zeros((), device=device)
    start = time.time()
    for step in range(1, STEPS + 1):
        pick = torch.randint(0, N_RECORDS, (BATCH,), device=device)
        x, y = x_all[pick], y_all[pick]
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        acc += (logits.argmax(1) == y).float().mean()
        if step % 50 == 0 or step == STEPS:
            print(f"{step:5d} loss {loss.item():.4f} acc {acc.item() / 50:.3f} "
                  f"{(time.time() - start) / step * 1e3:.1f} ms", flush=True)
            acc.zero_()


if __name__ == "__main__":
    main()
