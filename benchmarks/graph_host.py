"""What a step costs the host where forward, backward and update are replayed: the replays do nothing here, so that
this needs no GPU, and what is left is looking whether all is as it was, and handing tensors over.

    python benchmarks/graph_host.py

Microseconds, medians over the steps; `loss` is that of the same loss and its backward alone, without a model.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hotlap.levers.cudagraphs._training_graph import GraphedTraining
from hotlap.levers.cudagraphs._update_graph import GraphedUpdate
from hotlap.levers.cudagraphs.graph_optimizer import prepare

WIDTH, ROWS, CLASSES = 8, 16, 256
BEFORE = 40


class Block(nn.Module):
    """Sixteen parameters, as a block of a GPT has."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.projections = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        for projection in self.projections:
            y = projection(y)
        return x + self.mlp(self.norms[1](x + y))  # type: ignore[no-any-return]


def model_of(blocks: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(CLASSES, WIDTH), *(Block() for _ in range(blocks)), nn.Linear(WIDTH, CLASSES))


def nothing() -> None:
    """In place of a replay."""


def done(work: Callable[[], None]) -> Callable[[], None]:
    """In place of a recording: it is made once, and what it left is what a replay is compared by."""
    work()
    return nothing


def graphed(model: nn.Module, optimizer: torch.optim.Optimizer, whys: list[str]) -> tuple[Any, Any]:
    forward = GraphedTraining(
        model, model._call_impl, done, rehearse=lambda work: work(), where=lambda: "a stream",
        unsteady=nothing, gave_up=whys.append,
    )  # fmt: skip
    assert prepare(optimizer) is None
    update = GraphedUpdate(
        optimizer, done, prepare=prepare, room=lambda size: True, recording=nothing,
        gave_up=lambda optimizer, why: whys.append(why),
    )  # fmt: skip
    optimizer._init_group = update  # type: ignore[attr-defined]
    return forward, update


def measured(blocks: int, steps: int) -> dict[str, Any]:
    model = model_of(blocks)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    whys: list[str] = []
    forward, update = graphed(model, optimizer, whys)
    inputs, targets = torch.randint(0, CLASSES, (ROWS,)), torch.randint(0, CLASSES, (ROWS,))
    alone = torch.randn(ROWS, CLASSES, requires_grad=True)
    took: dict[str, list[float]] = {name: [] for name in ("zero_grad", "forward", "backward", "update", "loss")}
    for step in range(BEFORE + steps):
        if step == BEFORE:
            replays = forward.replays, update.replays
            took = {name: [] for name in took}
        times = [time.perf_counter()]
        optimizer.zero_grad()
        times.append(time.perf_counter())
        output = forward(inputs)
        times.append(time.perf_counter())
        F.cross_entropy(output, targets).backward()
        times.append(time.perf_counter())
        optimizer.step()
        times.append(time.perf_counter())
        alone.grad = None
        F.cross_entropy(alone, targets).backward()
        times.append(time.perf_counter())
        for name, begun, ended in zip(took, times[:-1], times[1:], strict=True):
            took[name].append((ended - begun) * 1e6)
    assert not whys and (forward.replays, update.replays) == (replays[0] + steps, replays[1] + steps), whys
    medians = {name: round(statistics.median(values)) for name, values in took.items()}
    return {
        "parameters": len(list(model.parameters())),
        "modules": len(list(model.modules())),
        "microseconds": medians,
        "beside_the_loss": sum(medians.values()) - 2 * medians["loss"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    print(json.dumps({"torch": str(torch.__version__), **measured(args.blocks, args.steps)}, indent=1))


if __name__ == "__main__":
    main()
