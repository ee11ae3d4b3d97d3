"""Classifier on embeddings; training goes back one state when the loss jumps."""

import copy
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("STEPS", 80))


class Net(nn.Module):
    def __init__(self, d=768, width=1536, classes=100):
        super().__init__()
        self.stem = nn.Linear(d, width)
        self.mid = nn.Linear(width, width)
        self.cls = nn.Linear(width, classes)

    def forward(self, x):
        return self.cls(F.gelu(self.mid(F.gelu(self.stem(x)))))


class RollbackGuard:
    def __init__(self, model, optimizer, factor=3.0):
        self.model = model
        self.optimizer = optimizer
        self.factor = factor
        self.mean = None
        self.good = None

    def is_bad(self, loss):
        if not math.isfinite(loss):
            return True
        if self.mean is None:
            self.mean = loss
        bad = loss > self.factor * self.mean
        self.mean = 0.95 * self.mean + 0.05 * loss
        return bad

    def keep(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.good = copy.deepcopy(state)

    def restore(self):
        self.model.load_state_dict(self.good["model"])
        self.optimizer.load_state_dict(copy.deepcopy(self.good["optimizer"]))


def main():
    torch.manual_seed(0)
    x_all = torch.randn(1024, 768)
    y_all = torch.randint(0, 100, (1024,))
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    guard = RollbackGuard(net, optimizer)
    for step in range(STEPS):
        pick = torch.randint(0, 1024, (8,))
        loss = F.cross_entropy(net(x_all[pick]), y_all[pick])
        value = loss.item()
        if guard.is_bad(value) and guard.good is not None:
            guard.restore()
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if math.isfinite(value):
            guard.keep()
        if step % 20 == 0:
            print(f"step {step} loss {value:.4f}")


if __name__ == "__main__":
    main()
