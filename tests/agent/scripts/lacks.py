"""Host memory runs out: `lacks.py WHERE`, in the forward, the backward, the loop, or Python itself; or it is caught."""

import resource
import sys
from typing import Any

import torch
from torch import nn

ROOM = 256 << 20
TOO_MUCH = 1 << 34


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        if where == "forward" and len(losses) == 3:
            hidden = hidden + torch.empty(TOO_MUCH, dtype=torch.uint8).sum()
        return self.last(hidden)


class Greedy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + torch.empty(TOO_MUCH, dtype=torch.uint8).sum()


def more() -> Any:
    return bytearray(TOO_MUCH) if where == "python" else torch.empty(TOO_MUCH, dtype=torch.uint8)


def used() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


where = sys.argv[1]
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
kept = [torch.ones(1 << 18) for _ in range(4)]
losses: list[float] = []
limit = used() + ROOM
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
if where == "before":
    more()
for _ in range(5):
    output = model(torch.ones(32, 64))
    if where == "backward" and len(losses) == 3:
        output = Greedy.apply(output)
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print("loss", losses[-1])
    if len(losses) == 3 and where in {"loop", "python"}:
        more()
    if len(losses) == 3 and where in {"caught", "chained"}:
        try:
            more()
        except RuntimeError as error:
            if where == "chained":
                raise ValueError("the batch is too large") from error
            print("caught")
