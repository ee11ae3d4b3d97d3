"""Digit classifier that also reports how alive its activations are."""

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

RECORD_EVERY = 5


class DigitEncoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(dim=(2, 3)))


class ActivationMonitor:
    def __init__(self, model):
        self.model = model
        self.stats = {}
        self.history = []

    def attach(self):
        for name, module in self.model.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(self.make_hook(name))

    def make_hook(self, name):
        def hook(module, inputs, output):
            out = output.detach()
            self.stats[name] = (out.mean().item(), out.std().item(), (out > 0).float().mean().item())

        return hook

    def record(self, step):
        alive = np.mean([s[2] for s in self.stats.values()])
        self.history.append((step, float(alive)))
        return alive


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return accuracy


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None]
    y = torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=64, shuffle=True)
    model = DigitEncoder()
    monitor = ActivationMonitor(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for epoch in range(10):
        for images, labels in loader:
            recording = step % RECORD_EVERY == 0
            if recording:
                monitor.attach()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if recording:
                alive = monitor.record(step)
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f} alive {alive:.3f} acc {evaluate(model, x[1500:], y[1500:]):.3f}")


if __name__ == "__main__":
    main()
