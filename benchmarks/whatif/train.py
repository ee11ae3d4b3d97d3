"""Train one of the what-if pairs: as it is, with its cause removed (--fixed), or both in turn (--compare).

    python train.py items_small --steps 60
    python train.py items_small --fixed
    python train.py items_small tf32_square --compare    # a JSON line each: ms a step of both, in ABBA blocks

Each pair is one model and one cause, compared in one process. The step is the loop's period on the host's clock over
a block of steps, the device synchronised at both ends of the block and nowhere in it.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = DEVICE == "cpu"
Step = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    """Of a transformer-like stack. rows: of the batch. host_ms: what else the host does in a step."""

    width: int
    depth: int
    rows: int
    host_ms: float = 0.0


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Decoded(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take `ms` of Python to make."""

    def __init__(self, width: int, ms: float) -> None:
        self.width, self.ms = width, ms

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        until = time.perf_counter() + self.ms / 1000
        total = 0
        while time.perf_counter() < until:
            total += index
        return torch.full((self.width,), float(index % 7)), torch.full((self.width,), float(total % 3))


def stack(sizes: Sizes) -> nn.Module:
    torch.manual_seed(0)
    if TINY:
        sizes = Sizes(64, 2, 32, sizes.host_ms)
    return nn.Sequential(*[Block(sizes.width) for _ in range(sizes.depth)]).to(DEVICE)


def batch(sizes: Sizes, model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    width = model[0].norm.normalized_shape[0]  # type: ignore[index,union-attr]
    shape = (32 if TINY else sizes.rows, width)
    return torch.randn(shape, device=DEVICE), torch.randn(shape, device=DEVICE)


def plain_step(sizes: Sizes, *, item: bool = False, fused: bool | None = None, autocast: bool = False) -> Step:
    """One ordinary step on one batch that is already on the device."""
    model = stack(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    x, y = batch(sizes, model)
    total = [0.0]

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        loss.backward()
        optimizer.step()
        if item:
            total[0] += loss.item()
        if sizes.host_ms:
            time.sleep(sizes.host_ms / 1000)

    return step


def items(sizes: Sizes, fixed: bool) -> Step:
    return plain_step(sizes, item=not fixed)


def fused(sizes: Sizes, fixed: bool) -> Step:
    return plain_step(sizes, fused=fixed or None)


def bf16(sizes: Sizes, fixed: bool) -> Step:
    return plain_step(sizes, autocast=fixed)


def tf32(sizes: Sizes, fixed: bool) -> Step:
    step = plain_step(sizes)

    def with_precision() -> None:
        torch.backends.cuda.matmul.fp32_precision = "tf32" if fixed else "ieee"
        step()
        torch.backends.cuda.matmul.fp32_precision = "ieee"  # other pairs may follow in this process

    return with_precision


def graphs(sizes: Sizes, fixed: bool) -> Step:
    """fixed: forward, backward and optimizer captured as one CUDA graph."""
    model = stack(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=not TINY)
    x, y = batch(sizes, model)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    if TINY or not fixed:
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def workers(sizes: Sizes, fixed: bool) -> Step:
    model = stack(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = Decoded(model[0].norm.normalized_shape[0], 0.1)  # type: ignore[index,union-attr]
    rows = 32 if TINY else sizes.rows
    loader = DataLoader(data, rows, num_workers=(2 if TINY else 8) if fixed else 0, pin_memory=fixed and not TINY)
    batches: list[Iterator[list[torch.Tensor]]] = []

    def step() -> None:
        if not batches:
            batches.append(iter(loader))
        x, y = (tensor.to(DEVICE, non_blocking=True) for tensor in next(batches[0]))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    return step


PAIRS: dict[str, tuple[Callable[[Sizes, bool], Step], Sizes, str]] = {
    "items_small": (items, Sizes(256, 24, 512, 2.0), "no_syncs"),
    "items_large": (items, Sizes(1536, 8, 8192, 12.0), "no_syncs"),
    "items_alone": (items, Sizes(1024, 12, 4096), "no_syncs"),
    "workers_small": (workers, Sizes(256, 8, 256), "free_input"),
    "workers_large": (workers, Sizes(2048, 8, 512), "free_input"),
    "graphs_small": (graphs, Sizes(128, 24, 128), "no_launch_cost"),
    "graphs_medium": (graphs, Sizes(512, 24, 1024), "no_launch_cost"),
    "tf32_square": (tf32, Sizes(2048, 8, 8192), "tf32_matmuls"),
    "tf32_narrow": (tf32, Sizes(512, 12, 16384), "tf32_matmuls"),
    "bf16_square": (bf16, Sizes(2048, 8, 8192), "bf16_matmuls"),
    "bf16_narrow": (bf16, Sizes(768, 12, 16384), "bf16_matmuls"),
    "fused_large": (fused, Sizes(4096, 6, 1024), "fused_optimizer"),
    "fused_small": (fused, Sizes(256, 24, 8192), "fused_optimizer"),
}


def synchronise() -> None:
    if not TINY:
        torch.cuda.synchronize()


def block_ms(step: Step, steps: int) -> float:
    synchronise()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    synchronise()
    return (time.perf_counter() - begun) * 1000 / steps


def compare(name: str, change: str, before: Step, after: Step, steps: int) -> dict[str, object]:
    """A row: both steps in ABBA blocks. Ranks keep in step by their own collectives."""
    for step in (before, after):
        block_ms(step, 10)
    times: dict[bool, list[float]] = {False: [], True: []}
    for fixed in (False, True, True, False, False, True):
        times[fixed].append(block_ms(after if fixed else before, steps))
    found = {"pair": name, "change": change, "before_ms": median(times[False]), "after_ms": median(times[True])}
    return {**found, "blocks_ms": [times[False], times[True]]}


def arguments(about: str | None, pairs: Iterable[str]) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", nargs="+", choices=list(pairs), help="one, or with --compare several")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    return parser.parse_args()


def main() -> None:
    args = arguments(__doc__, PAIRS)
    if args.compare:
        for name in args.pair:
            make, sizes, change = PAIRS[name]
            row = compare(name, change, make(sizes, False), make(sizes, True), args.steps)
            print(json.dumps(row), flush=True)
        return
    make, sizes, _ = PAIRS[args.pair[0]]
    step = make(sizes, args.fixed)
    for _ in range(args.steps):
        step()


if __name__ == "__main__":
    main()
