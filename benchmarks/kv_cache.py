"""The lever kv-cache: text that a model without a cache makes, as it is, with keys and values kept, and with the
token's work compiled as well, side by side.

    python benchmarks/kv_cache.py --out benchmarks/results/kv-cache-cpu.json
    python benchmarks/kv_cache.py --device cuda --dim 768 --heads 12 --layers 12 --out OUT.json

Each round completes the same prompts all three ways, every second round in the other order; what the model returns for
each token is compared. Milliseconds a token over a whole text (`--new` tokens behind a prompt), the loop's own choice
of the token and the ordinary call on the prompt included; the first texts, which find out, compile and prove, are not
counted.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).with_name("zoo")))
from decode import GPT

from hotlap.levers.kv_cache import cached

Forward = Callable[[torch.Tensor], torch.Tensor]


class Seams:
    """What the lever asks of the agent, without one."""

    def unsteady(self) -> None:
        pass

    def refuse(self, lever: str, why: str) -> None:
        raise SystemExit(f"{lever}: {why}")

    leave_out = refuse


def text(forward: Forward, tokens: torch.Tensor, new: int) -> tuple[float, list[torch.Tensor]]:
    """Greedily: milliseconds a token, and the logits of each."""
    last = []
    begun = time.perf_counter()
    for _ in range(new):
        last.append(forward(tokens)[:, -1, :])
        tokens = torch.cat([tokens, last[-1].argmax(-1, keepdim=True)], dim=1)
    tokens.sum().item()
    return (time.perf_counter() - begun) * 1000 / new, last


def gap(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The largest difference of a token's logits, relative (of norms)."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(one, other, strict=True))


@torch.no_grad()
def measured(args: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    model = GPT(args.vocab, args.prompt + args.new, args.dim, args.heads, args.layers).to(args.device).eval()
    prompts = [torch.randint(args.vocab, (args.batch, args.prompt), device=args.device) for _ in range(args.rounds + 3)]
    ways: dict[str, Forward] = {"bare": model}
    for name, compile in (("cached", False), ("compiled", True)):
        ways[name] = cached(model, model.forward, Seams(), "kv-cache", compile)  # type: ignore[arg-type]
    for forward in ways.values():
        for tokens in prompts[:3]:
            text(forward, tokens, args.new)
    rows = []
    for number, tokens in enumerate(prompts[3:]):
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        found = {name: text(ways[name], tokens, args.new) for name in order}
        bare_ms, bare = found["bare"]
        row = {f"{name}_ms": found[name][0] for name in ways}
        row |= {f"{name}_ratio": bare_ms / found[name][0] for name in ("cached", "compiled")}
        row |= {f"{name}_gap": gap(found[name][1], bare) for name in ("cached", "compiled")}
        rows.append({name: float(f"{value:.3g}") for name, value in row.items()})
        print(json.dumps(rows[-1]), flush=True)
    cuda = torch.device(args.device).type == "cuda"
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {len(os.sched_getaffinity(0))} cores",
        "threads": torch.get_num_threads(),
        "sizes": {name: getattr(args, name) for name in ("vocab", "dim", "heads", "layers", "batch", "prompt", "new")},
        "ratio": {name: statistics.median(row[f"{name}_ratio"] for row in rows) for name in ("cached", "compiled")},
        "rounds": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    for name, value in {
        "vocab": 4096,
        "dim": 256,
        "heads": 4,
        "layers": 4,
        "batch": 4,
        "prompt": 32,
        "new": 224,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = measured(args)
    print(", ".join(f"{name} {ratio:.2f}x" for name, ratio in found["ratio"].items()))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
