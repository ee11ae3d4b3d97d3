"""A block as Llama has it: query, key and value of one input, gate and up of another."""

import torch
import torch.nn.functional as F
from common import end, said
from torch import nn

LENGTH, WIDTH = 16, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, 1)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        x = x + F.softmax(q @ k.transpose(-2, -1) / WIDTH**0.5, dim=-1) @ v
        return self.down(F.silu(self.gate(x)) * self.up(x)).squeeze(-1)


torch.manual_seed(0)
model = Block()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with torch.no_grad():
    for _ in range(9):
        model(torch.randn(2, LENGTH, WIDTH))
for _ in range(12):
    x = torch.randn(2, LENGTH, WIDTH)
    optimizer.zero_grad()
    said((model(x) - x.mean(-1)).square().mean()).backward()
    optimizer.step()
end(model)
