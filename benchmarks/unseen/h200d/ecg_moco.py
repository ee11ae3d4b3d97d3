"""Momentum-contrast pretraining of an ECG encoder."""

import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv1d(cin, cout, 7, stride=stride, padding=3, bias=False)
        self.bn1 = nn.BatchNorm1d(cout)
        self.conv2 = nn.Conv1d(cout, cout, 7, padding=3, bias=False)
        self.bn2 = nn.BatchNorm1d(cout)
        self.skip = nn.Conv1d(cin, cout, 1, stride=stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


def encoder(dim):
    return nn.Sequential(
        nn.Conv1d(1, 64, 15, stride=2, padding=7, bias=False),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        Residual(64, 128, 2),
        Residual(128, 256, 2),
        Residual(256, 256, 2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(256, 512),
        nn.ReLU(),
        nn.Linear(512, dim),
    )


class MoCo(nn.Module):
    def __init__(self, dim=256, size=131_072, momentum=0.99, temperature=0.1):
        super().__init__()
        self.momentum, self.temperature, self.size = momentum, temperature, size
        self.encoder_q = encoder(dim)
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.queue = F.normalize(torch.randn(size, dim), dim=1)
        self.head = 0

    @torch.no_grad()
    def update_key_encoder(self):
        keys, queries = list(self.encoder_k.parameters()), list(self.encoder_q.parameters())
        torch._foreach_lerp_(keys, queries, 1.0 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        n = len(keys)
        self.queue[self.head : self.head + n] = keys
        self.head = (self.head + n) % self.size

    def forward(self, view_q, view_k):
        q = F.normalize(self.encoder_q(view_q).float(), dim=1)
        with torch.no_grad():
            self.update_key_encoder()
            k = F.normalize(self.encoder_k(view_k).float(), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.to(q.device).T
        logits = torch.cat([positive, negative.float()], dim=1) / self.temperature
        return F.cross_entropy(logits, logits.new_zeros(len(q), dtype=torch.long)), k


def augment(x):
    gain = torch.rand(len(x), 1, 1, device=x.device) * 0.6 + 0.7
    start = torch.randint(x.shape[-1] - 896, (len(x), 1, 1), device=x.device)
    window = start + torch.arange(896, device=x.device)
    return x.gather(2, window) * gain + torch.randn(len(x), 1, 896, device=x.device) * 0.05


def make_ecg(count, device, length=1024):
    t = torch.arange(length, device=device) / 250.0
    rate = torch.rand(count, 1, device=device) * 1.2 + 0.8
    phase = torch.rand(count, 1, device=device)
    beat = (t * rate + phase) % 1.0
    width = torch.rand(count, 1, device=device) * 0.03 + 0.01
    return torch.exp(-(((beat - 0.5) / width) ** 2)).unsqueeze(1)


def main(steps=500, batch=512):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    signals = make_ecg(50_000, device)
    model = MoCo().to(device)
    opt = torch.optim.SGD(model.encoder_q.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    began = time.time()
    for step in range(1, steps + 1):
        x = signals[torch.randint(len(signals), (batch,), device=device)]
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss, keys = model(augment(x), augment(x))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        model.enqueue(keys)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - began:.1f}s")


if __name__ == "__main__":
    main()
