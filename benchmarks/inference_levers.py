"""Forwards as CUDA graphs, side by side with eager calls and with torch.compile: times and differences.

    python benchmarks/inference_levers.py [--compile] [--out FILE]

An MLP and a transformer on inputs of three shapes in turns, and the decoder of `inference_loop.py`, whose cache is
written in place. Outputs of replays are compared with eager ones; --compile: torch.compile beside them.

Times are medians over rounds in which the ways take turns, ms a call, in one process: for comparing ways, not a proof.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from inference_loop import Decoder, decode
from torch import nn

from hotlap.levers import graph_forward
from hotlap.levers._forward_graph import GraphedForward, relative_error

ROUNDS, CALLS = 7, 45
Call = Callable[..., Any]


def timed(ways: dict[str, Call], inputs: Sequence[tuple[Any, ...]]) -> dict[str, float]:
    """Median ms a call of each way, over rounds in which they take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for at in range(CALLS):
                call(*inputs[at % len(inputs)])
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) * 1000 / CALLS)
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


def graphed(model: nn.Module, whys: list[str]) -> GraphedForward:
    """The lever's forward of a model."""
    return graph_forward.graphed(model, model._call_impl, lambda: None, whys.append)


def compiled(model: nn.Module, mode: str | None) -> Call:
    """torch.compile of a model as the lever `compile` has it: with outputs of its own."""
    call = torch.compile(model, mode=mode)

    def own(*args: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return call(*args).clone()

    return own


def shapes(
    name: str, model: nn.Module, make: Callable[[int], torch.Tensor], sizes: Sequence[int], compiling: bool
) -> dict[str, Any]:
    """Inputs of several shapes in turns."""
    whys: list[str] = []
    before = torch.cuda.memory_reserved()
    call = graphed(model, whys)
    gap, equal = 0.0, True
    for _ in range(8):
        for size in sizes:
            x = make(size)
            got, expected = call(x), model(x)
            equal &= torch.equal(got, expected)
            gap = max(gap, relative_error(got, expected))
    pool = torch.cuda.memory_reserved() - before
    inputs = [(make(size),) for size in sizes]
    ways = {"eager": model, "graph-forward": call}
    if compiling:
        ways |= {"compile": compiled(model, None), "reduce-overhead": compiled(model, "reduce-overhead")}
    for way in ways.values():
        for _ in range(4):
            for given in inputs:
                way(*given)
    found = {"model": name, "refused": whys, "replays": call.replays, "equal": equal, "gap": gap, "pool_bytes": pool}
    return {**found, "ms": timed(ways, inputs)}


def cached() -> dict[str, Any]:
    """A decoder whose cache is written in place: the tokens have to be the same."""
    torch.manual_seed(0)
    model, whys = Decoder().cuda().eval(), []
    expected = decode(model, "cuda", 200)
    call = graphed(model, whys)
    call.batch, call.length = model.batch, model.length  # type: ignore[attr-defined]
    got = decode(call, "cuda", 200)
    inputs = [(torch.zeros(model.batch, 1, dtype=torch.long, device="cuda"), torch.tensor([7], device="cuda"))]
    found = {"model": "decoder", "refused": whys, "replays": call.replays, "equal": torch.equal(got, expected)}
    return {**found, "ms": timed({"eager": model, "graph-forward": call}, inputs)}


def graphs(compiling: bool) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    wide = nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512))])
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
    deep = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    rows = lambda n: torch.randn(n, 512, device="cuda")  # noqa: E731
    tokens = lambda n: torch.randn(8, n, 256, device="cuda")  # noqa: E731
    return [
        shapes("mlp", wide.cuda().eval(), rows, (64, 96, 128), compiling),
        shapes("transformer", deep.cuda().eval(), tokens, (32, 48, 64), compiling),
        cached(),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this needs a CUDA device")
    with torch.no_grad():
        rows = graphs(args.compile)
    print("\n".join(map(json.dumps, rows)))
    if args.out:
        document = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
