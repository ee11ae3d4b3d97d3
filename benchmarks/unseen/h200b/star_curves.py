"""Estimate the period of variable stars from their light curves."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
POINTS = 1024 if GPU else 32
BATCH = 16 if GPU else 4
WIDTH = 512 if GPU else 64
HEADS = 8 if GPU else 4
LAYERS = 6 if GPU else 2
STEPS = 450 if GPU else 5


def observe():
    """A batch of light curves: (time, flux, error) at each point, and the log period."""
    log_period = torch.rand(BATCH, 1, device=device) * 3
    time = torch.rand(BATCH, POINTS, device=device).mul_(50).sort(dim=1).values
    error = torch.rand(BATCH, POINTS, device=device) * 0.2
    flux = torch.sin(6.2832 * time / log_period.exp()) + error * torch.randn_like(time)
    return torch.stack([time / 50, flux, error], dim=2), log_period.squeeze(1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        y = self.norm1(x)
        y, _ = self.attn(y, y, y)
        x = x + y
        return x + self.mlp(self.norm2(x))


class PeriodNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, curves):
        x = self.embed(curves)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(dim=1)).squeeze(1)


def main():
    torch.manual_seed(0)
    model = PeriodNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-4, total_steps=STEPS)
    for step in range(STEPS):
        curves, log_period = observe()
        with torch.autocast(device, dtype=torch.bfloat16):
            pred = model(curves)
        loss = F.mse_loss(pred.float(), log_period)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
