"""Surrogate of a flow solver: wide residual MLP from boundary conditions to a pressure field."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class WideLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x)))


class Surrogate(nn.Module):
    def __init__(self, inputs, outputs, width, depth):
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.layers = nn.Sequential(*[WideLayer(width) for _ in range(depth)])
        self.leave = nn.Linear(width, outputs)
        for layer in self.layers:
            nn.init.zeros_(layer.b.weight)

    def forward(self, x):
        return self.leave(self.layers(F.relu(self.enter(x))))


class Simulations:
    """Random boundary conditions with a smooth response, all on the device."""

    def __init__(self, inputs, outputs, device):
        self.inputs = inputs
        self.device = device
        self.mix = torch.randn(inputs, 64, device=device) / inputs**0.5
        self.modes = torch.randn(64, outputs, device=device) / 8

    def draw(self, count):
        x = torch.randn(count, self.inputs, device=self.device)
        return x, torch.sin(x @ self.mix) @ self.modes


@torch.no_grad()
def relative_error(model, x, y, device):
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        guess = model(x)
    return ((guess.float() - y).norm() / y.norm()).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=6144)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = Simulations(256, 1024, device)
    x_val, y_val = data.draw(args.batch)
    with torch.device(device):
        model = Surrogate(256, 1024, args.width, args.depth)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-4, total_steps=args.steps)
    start = time.time()
    for step in range(1, args.steps + 1):
        x, y = data.draw(args.batch)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 150 == 0:
            error = relative_error(model, x_val, y_val, device)
            print(f"step {step} error {error:.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
