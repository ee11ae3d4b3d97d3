"""A mixture of experts as a loop."""

import torch
from common import said
from torch import nn

WIDTH, EXPERTS, TOP = 8, 4, 2


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        make = [nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH)) for _ in range(EXPERTS)]
        self.experts = nn.ModuleList(make)

    def forward(self, x):
        weights, chosen = torch.topk(torch.softmax(self.router(x), dim=-1), TOP, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            if len(rows) == 0:
                continue
            out[rows] += weights[rows, slots, None] * expert(x[rows])
        return out


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Layer(), Layer())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(6):
    x = torch.randn(12, WIDTH)
    optimizer.zero_grad()
    said((model(x) - x.roll(1, 1)).square().mean()).backward()
    optimizer.step()
