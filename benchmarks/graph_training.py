"""The lever graph-training on a GPU: whether training is the same, and what a step takes.

    python benchmarks/graph_training.py --out benchmarks/results/graph-training-h200.json

Each case trains two copies of a model side by side, one by ordinary steps and one with forward and backward replayed,
and compares losses and all weights and buffers; beside it a third, ordinary again, since some kernels of a GPU do not
repeat themselves. Times are of a loop that reads its loss each step, milliseconds a step over 100 steps after 20, one
way after the other.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hotlap.levers.cudagraphs.graph_training import graphed

WIDTH, ROWS, LENGTH, CLASSES = 128, 16, 64, 256
Forward = Callable[[torch.Tensor], torch.Tensor]


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        layers = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout)
        self.mlp, self.dropout = nn.Sequential(*layers), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(rows, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norms[1](x))


def gpt(dropout: float = 0.0) -> nn.Module:
    """Six layers, 76 parameters."""
    blocks = [Block(dropout) for _ in range(6)]
    return nn.Sequential(nn.Embedding(CLASSES, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES))


def adapted() -> nn.Module:
    """A large base that is frozen, 200 million numbers, and a small head that is trained."""
    base = nn.Sequential(nn.Embedding(CLASSES, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    wide = nn.Sequential(nn.Linear(WIDTH, 8192), nn.ReLU(), *(nn.Linear(8192, 8192) for _ in range(3)))
    head = nn.Sequential(nn.Linear(8192, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    return nn.Sequential(base.requires_grad_(False), wide.requires_grad_(False), head)


def cnn() -> nn.Module:
    """With batch norms and dropout."""
    first = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
    second = nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def batch(images: bool, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, the same for the same number."""
    generator = torch.Generator(device="cuda").manual_seed(number)
    shape = (ROWS,) if images else (ROWS, LENGTH)
    targets = torch.randint(0, CLASSES, shape, generator=generator, device="cuda")
    if images:
        return torch.randn(ROWS, 3, 32, 32, generator=generator, device="cuda"), targets
    return torch.randint(0, CLASSES, shape, generator=generator, device="cuda"), targets


def loss_of(forward: Forward, images: bool, number: int) -> torch.Tensor:
    inputs, targets = batch(images, number)
    return F.cross_entropy(forward(inputs).flatten(0, -2), targets.flatten())


def train(model: nn.Module, forward: Forward, images: bool, accumulate: int, steps: int = 14) -> list[float]:
    """Losses of some steps, each of so many batches."""
    torch.manual_seed(7)  # of dropout
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            loss = loss_of(forward, images, step * accumulate + part)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def replayed(model: nn.Module, forward: Forward, whys: list[str]) -> Any:
    return graphed(model, forward, lambda: None, whys.append)


def compared(make: Callable[[], nn.Module], images: bool, compiled: bool, accumulate: int) -> dict[str, Any]:
    """Two trainings of the same model."""
    torch.manual_seed(0)
    models = [make().cuda()]
    models += [copy.deepcopy(models[0]) for _ in range(2)]
    ordinary, again, other = (torch.compile(m.forward) if compiled else m._call_impl for m in models)
    whys: list[str] = []
    forward = replayed(models[2], other, whys)
    losses, peaks = [], []
    for model, way in zip(models, (ordinary, again, forward), strict=True):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        losses.append(train(model, way, images, accumulate))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    return {
        "replays": forward.replays,
        "gave_up": whys,
        **difference(losses[0], losses[2], models[0], models[2]),
        "of_two_ordinary": difference(losses[0], losses[1], models[0], models[1]),
        "peak_mb": {"ordinary": peaks[0] // 10**6, "graph-training": peaks[2] // 10**6},
    }


def difference(a: list[float], b: list[float], one: nn.Module, two: nn.Module) -> dict[str, Any]:
    states = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return {
        "largest_difference_of_losses": max(abs(x - y) for x, y in zip(a, b, strict=True)),
        "state_equal_bit_for_bit": all(torch.equal(x, y) for x, y in states),
    }


def step_ms(model: nn.Module, forward: Forward, steps: int = 100, before: int = 20) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    begun = 0.0
    for step in range(before + steps):
        if step == before:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(forward, False, 1)
        loss.backward()
        optimizer.step()
        loss.item()
    torch.cuda.synchronize()
    return round((time.perf_counter() - begun) / steps * 1000, 3)


def timed(way: str) -> float:
    """One way, in milliseconds a step."""
    torch.manual_seed(0)
    model = gpt().cuda()
    forward: Any = model._call_impl
    if way == "reduce-overhead":
        graphs = torch.compile(model.forward, mode="reduce-overhead")

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            return graphs(inputs).clone()  # type: ignore[no-any-return]

    elif "compile" in way:
        forward = torch.compile(model.forward)
    if "graph-training" in way:
        forward = replayed(model, forward, [])
    return step_ms(model, forward)


CASES: dict[str, tuple[Callable[[], nn.Module], bool, bool, int]] = {
    "gpt": (gpt, False, False, 1),
    "gpt, dropout": (lambda: gpt(0.1), False, False, 1),
    "gpt, three batches a step": (gpt, False, False, 3),
    "cnn, batch norms and dropout": (cnn, True, False, 1),
    "gpt, compiled": (gpt, False, True, 1),
    "large frozen base": (adapted, False, False, 1),
}
WAYS = ("eager", "graph-training", "compile", "compile, graph-training", "reduce-overhead")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(),
        "same": {name: compared(*case) for name, case in CASES.items()},
        "step_ms": {way: timed(way) for way in WAYS},
    }
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
