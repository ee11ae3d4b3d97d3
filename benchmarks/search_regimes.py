"""In which regimes does a tune end with what it could prove? A search on the machine of the tests, without processes.

    python benchmarks/search_regimes.py --seeds 4 --out benchmarks/results/search-regimes.json

A command with levers that win 1.85 times when they are switched on, 1.03 by a start of their own and 1.43 by
compilation, over how long its steps and starts take, how steps and processes differ, what memory holds, how often it
evaluates, and a machine that becomes three times slower after a minute. Told of each: tunes with a proof, the gain
that was proved in the geometric mean (1 where none was), and when the first proof came, in seconds.
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tune"))
from machine import BEGAN, FakeLever, compiler, factors, made, run, starter

FACTORS = {"a": 0.6, "b": 0.95, "c": 1.0, "d": 1.02, "e": 0.9, "s": 0.97, "compile": 0.7}
USUAL: dict[str, Any] = {"step_ms": 200.0, "boot_s": 15.0, "process_sd": 0.015, "turn_sd": 0.04, "cores": 2}
REGIMES: dict[str, dict[str, Any]] = {
    **{f"steps of {ms} ms, starts of {s} s": {"step_ms": ms, "boot_s": s} for ms in (50, 400, 1500) for s in (5, 30)},
    **{f"steps of {ms} ms, 16 cores": {"step_ms": ms, "cores": 16} for ms in (200, 1500, 2500, 4000)},
    **{f"three times slower, steps of {ms} ms": {"step_ms": ms, "slower": 3.0} for ms in (50, 400)},
    **{f"turns differ by {sd:.0%}": {"turn_sd": sd, "process_sd": 0.03} for sd in (0.1, 0.2, 0.3)},
    "processes differ by 10%": {"process_sd": 0.1},
    "evaluates 5 s each 50 steps": {"evaluates": (50, 5.0)},
    "memory holds two": {"room": 2},
    "memory holds one": {"room": 1},
    "ends after 400 steps": {"length": 400},
}


def tuned(budget: float, seed: int, **regime: Any) -> tuple[float, float | None]:
    """One tune: the gain that is proved, and when the first proof came."""
    given = {**USUAL, **regime}
    step_ms, slower = given.pop("step_ms"), given.pop("slower", 1.0)
    levers = [FakeLever("a"), *(FakeLever(name, 0.3) for name in "bcde"), starter("s", 0.2), compiler()]
    search, machine = made(
        Path(tempfile.mkdtemp()), levers, factors(step_ms, **FACTORS), budget=budget, seed=seed, cold_s=10.0,
        warmup_s=2.0 + 4 * step_ms / 1000, compile_s=lambda uses: 40.0 * ("compile" in uses),
        luck=lambda side, uses: slower if machine.now - BEGAN > 60 else 1.0, **given,
    )  # fmt: skip
    machine.crowded = given["cores"] == 2
    found = run(search, machine)
    first = min((proof.at_s for proof in found.proofs if proof.proved), default=None)
    return (found.proved.ratio, first) if found.proved is not None else (1.0, None)


def rows(seeds: int, regimes: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One of each regime and budget."""
    for (name, regime), budget in itertools.product(regimes.items(), (300.0, 600.0)):
        gains, firsts = zip(*(tuned(budget, seed, **regime) for seed in range(seeds)), strict=True)
        known = [first for first in firsts if first is not None]
        yield {
            "regime": name, "budget_s": budget, "proved": f"{len(known)} of {seeds}",
            "gain": round(geometric_mean(gains), 2), "first_s": round(fmean(known)) if known else None,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="tunes of each regime and budget")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = []
    for row in rows(args.seeds, REGIMES):
        found.append(row)
        print(json.dumps(row), flush=True)
    if args.out:
        args.out.write_text(json.dumps({"command": " ".join(sys.argv), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
