"""Weather-station nowcasting: one encoder, four heads (temperature, pressure, wind class, rain)."""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
use_cuda = device == "cuda"

HOURS = 96 if use_cuda else 24
DIM = 512 if use_cuda else 32
LAYERS = 6 if use_cuda else 2
BATCH = 256 if use_cuda else 8
STEPS = 700 if use_cuda else 4
STATIONS = 256 if use_cuda else 8
YEARS_H = 8760 if use_cuda else 600
TASKS = {"temperature": 1.0, "pressure": 0.5, "wind": 0.7, "rain": 1.5}
BEAUFORT = torch.tensor([0.2, 0.5, 1.0], device=device)


def simulate():
    """Hourly series for every station: season + day cycle + passing fronts."""
    g = torch.Generator().manual_seed(11)
    t = torch.arange(YEARS_H).float()
    front = torch.randn(STATIONS, YEARS_H, generator=g)
    kernel = torch.exp(-torch.arange(48).float() / 12)
    front = F.conv1d(front[:, None], (kernel / kernel.norm())[None, None], padding=47)[:, 0, :YEARS_H]
    base = torch.randn(STATIONS, 1, generator=g)
    temp = base + torch.sin(2 * math.pi * t / 8760) + 0.5 * torch.sin(2 * math.pi * t / 24) - 0.4 * front
    pressure = -front + 0.1 * torch.randn(STATIONS, YEARS_H, generator=g)
    wind = (front.diff(dim=1, prepend=front[:, :1]) * 4).abs() + 0.2 * torch.rand(STATIONS, YEARS_H, generator=g)
    humidity = torch.sigmoid(front + 0.3 * temp)
    rain = (humidity + 0.2 * torch.randn(STATIONS, YEARS_H, generator=g) > 0.7).float()
    return torch.stack([temp, pressure, wind, humidity, rain], -1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(5, DIM)
        self.pos = nn.Parameter(torch.randn(HOURS, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, 8, 4 * DIM, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, x):
        return self.body(self.inp(x) + self.pos).mean(1)


class Nowcaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.heads = nn.ModuleDict({
            "temperature": nn.Linear(DIM, 1), "pressure": nn.Linear(DIM, 1),
            "wind": nn.Linear(DIM, 4), "rain": nn.Linear(DIM, 1),
        })

    def forward(self, x):
        z = self.encoder(x)
        return {k: head(z).float() for k, head in self.heads.items()}


def objectives(pred, nxt):
    wind_class = torch.bucketize(nxt[:, 2].contiguous(), BEAUFORT)
    return {
        "temperature": F.smooth_l1_loss(pred["temperature"][:, 0], nxt[:, 0]),
        "pressure": F.smooth_l1_loss(pred["pressure"][:, 0], nxt[:, 1]),
        "wind": F.cross_entropy(pred["wind"], wind_class),
        "rain": F.binary_cross_entropy_with_logits(pred["rain"][:, 0], nxt[:, 4]),
    }


def main():
    torch.manual_seed(0)
    series = simulate().to(device)
    model = Nowcaster().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, fused=use_cuda)
    meter = {k: torch.zeros((), device=device) for k in TASKS}
    hours = torch.arange(HOURS + 1, device=device)
    start = time.time()
    for step in range(1, STEPS + 1):
        who = torch.randint(0, STATIONS, (BATCH, 1), device=device)
        when = torch.randint(0, YEARS_H - HOURS - 1, (BATCH, 1), device=device) + hours
        window = series[who, when]
        with torch.autocast(device, dtype=torch.bfloat16):
            pred = model(window[:, :-1])
        losses = objectives(pred, window[:, -1])
        opt.zero_grad(set_to_none=True)
        for name, weight in TASKS.items():
            (weight * losses[name]).backward(retain_graph=True)
            meter[name] += losses[name].detach()
        opt.step()
        if step % 50 == 0 or step == STEPS:
            text = " ".join(f"{k} {v.item() / 50:.4f}" for k, v in meter.items())
            print(f"[{step}] {text} ({(time.time() - start) / step * 1e3:.1f} ms per step)", flush=True)
            for v in meter.values():
                v.zero_()


if __name__ == "__main__":
    main()
