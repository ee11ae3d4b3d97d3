"""Differentially private training of a digit classifier (DP-SGD)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class DigitMLP(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.fc1 = nn.Linear(64, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 10)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class PrivateSGD:
    def __init__(self, model, lr, max_norm, noise):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.max_norm = max_norm
        self.noise = noise

    def clipped_gradients(self, x, y):
        params = list(self.model.parameters())
        totals = [torch.zeros_like(p) for p in params]
        losses = []
        for xi, yi in zip(x, y):
            loss = F.cross_entropy(self.model(xi[None]), yi[None])
            grads = torch.autograd.grad(loss, params)
            norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
            scale = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
            for total, g in zip(totals, grads):
                total += g * scale
            losses.append(loss.detach())
        return totals, torch.stack(losses).mean()

    def step(self, x, y):
        totals, loss = self.clipped_gradients(x, y)
        for p, total in zip(self.model.parameters(), totals):
            noisy = total + self.noise * self.max_norm * torch.randn_like(p)
            p.grad = noisy / len(x)
        self.optimizer.step()
        return loss


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target)
    x_train, y_train, x_test, y_test = x[:1536], y[:1536], x[1536:], y[1536:]

    model = DigitMLP()
    trainer = PrivateSGD(model, lr=0.5, max_norm=1.0, noise=0.8)
    batch_size = 128
    for epoch in range(20):
        order = torch.randperm(len(x_train))
        for step, idx in enumerate(order.split(batch_size)):
            loss = trainer.step(x_train[idx], y_train[idx])
            if step % 6 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch} accuracy {accuracy(model, x_test, y_test):.3f}", flush=True)


if __name__ == "__main__":
    main()
