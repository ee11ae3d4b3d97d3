"""Recurrent network with an orthogonal transition on a copy-like task."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations


class OrthogonalRNN(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.inp = nn.Linear(n_in, hidden)
        self.rec = parametrizations.orthogonal(nn.Linear(hidden, hidden, bias=False))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.out = nn.Linear(hidden, n_out)

    def forward(self, x):
        drive = self.inp(x)
        h = x.new_zeros(x.shape[0], self.bias.shape[0])
        for t in range(x.shape[1]):
            z = drive[:, t] + self.rec(h)
            h = torch.sign(z) * F.relu(z.abs() + self.bias)
        return self.out(h)


def batches(n, batch, length, n_in, gen):
    for _ in range(n):
        x = torch.randn(batch, length, n_in, generator=gen)
        y = (x[:, 0, :4].sum(1) > 0).long()
        yield x, y


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(3)
    model = OrthogonalRNN(8, 64, 2)
    opt = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    start, step = time.time(), 0
    for epoch in range(3):
        correct = seen = 0
        for x, y in batches(50, 64, 36, 8, gen):
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            correct += (logits.argmax(1) == y).sum().item()
            seen += len(y)
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f} acc {correct / seen:.3f}")
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
