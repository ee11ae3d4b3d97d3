"""How often parity catches planted frauds, and how often it refuses honest levers, over many seeds.

    python benchmarks/parity_rates.py --seeds 20

Every case of `tests/experiment/bench.py` is judged once a seed, as `hotlap tune` judges (two bare runs, the
trial, twins where they are needed). The runs are forks of a process that has imported torch; the tests make the same
runs as processes of their own.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "experiment"))

import bench  # noqa: E402 - the harness that the tests use

import hotlap  # noqa: E402
from hotlap.launch.environment import environment  # noqa: E402

CASES = [*bench.FRAUDS, *bench.HONEST, *bench.LIMITS]


def judge(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Judge every case with one seed."""
    found = []
    made = bench.Bench(folder, forking=True)
    for case in CASES:
        row: dict[str, Any] = {"case": case.name, "seed": seed, "ok": None, "level": "not run", "why": ""}
        with contextlib.suppress(AssertionError):
            parity = made.judge(case, seed)
            row |= {"ok": parity.ok, "level": parity.level, "why": parity.why, "loss_gap": parity.loss_gap}
        found.append(row)
    return found


def run_parts(folder: Path, seeds: int, jobs: int, begun: float) -> list[dict[str, Any]]:
    """Judge in several processes, each of which forks its runs."""
    command = [sys.executable, __file__, "--seeds", str(seeds), "--jobs", str(jobs), "--folder", str(folder), "--part"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    parts = [subprocess.Popen([*command, str(job)], stdout=subprocess.PIPE, env=environ) for job in range(jobs)]
    lines: list[bytes] = []

    def read(part: "subprocess.Popen[bytes]") -> None:
        assert part.stdout is not None
        for line in part.stdout:
            lines.append(line)
            print(f"{len(lines)} seeds done after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

    readers = [threading.Thread(target=read, args=(part,)) for part in parts]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return [row for line in lines for row in json.loads(line)]


def upper(wrong: int, of: int) -> float:
    """One-sided 95% upper limit of a rate (Clopper and Pearson)."""
    from scipy.stats import beta

    return 1.0 if wrong == of else float(beta.ppf(0.95, wrong + 1, of - wrong))


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line a case: how often it was judged, how often wrongly, at which levels."""
    lines = []
    for case in CASES:
        mine = [row for row in rows if row["case"] == case.name]
        known = [row for row in mine if row["ok"] is not None]
        wrong = [row for row in known if row["ok"] != case.honest]
        lines.append(
            {
                "case": case.name,
                "honest": case.honest,
                "known_limit": case in bench.LIMITS,
                "script": " ".join((case.script.name, *case.script.arguments)),
                "judged": len(known),
                "failed_to_run": len(mine) - len(known),
                "wrong": len(wrong),
                "levels": sorted({row["level"] for row in known}),
                "wrong_seeds": {str(row["seed"]): row["why"] for row in wrong},
            }
        )
    return lines


def summary(lines: list[dict[str, Any]], honest: bool) -> dict[str, Any]:
    """The rate of wrong verdicts among frauds or among honest levers."""
    chosen = [line for line in lines if line["honest"] == honest and not line["known_limit"]]
    judged, wrong = sum(line["judged"] for line in chosen), sum(line["wrong"] for line in chosen)
    return {"cases": len(chosen), "judged": judged, "wrong": wrong, "rate": wrong / judged if judged else math.nan,
            "upper_95": upper(wrong, judged) if judged else 1.0}  # fmt: skip


def show(lines: list[dict[str, Any]], frauds: dict[str, Any], honest: dict[str, Any]) -> None:
    """The table on stdout."""
    for title, kind, right in (("frauds", False, "caught"), ("honest levers", True, "passed")):
        print(f"\n{title:<66} {right}   levels")
        for line in (line for line in lines if line["honest"] == kind):
            good, mark = line["judged"] - line["wrong"], "  (a known limit)" if line["known_limit"] else ""
            print(f"  {line['case']:<64} {good:>3}/{line['judged']:<3}  {', '.join(line['levels'])}{mark}")
    print()
    for said, rate in (("frauds missed", frauds), ("honest refused", honest)):
        print(f"{said}: {rate['wrong']} of {rate['judged']} ({rate['rate']:.2%}, below {rate['upper_95']:.2%})")


def commit() -> str | None:
    """The commit that was measured, with a mark where files differed from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "parity-rates.json")
    args = parser.parse_args()
    begun = time.monotonic()
    if args.part is not None:
        for seed in range(args.part, args.seeds, args.jobs):
            print(json.dumps(judge(args.folder, seed)), flush=True)
        return
    with tempfile.TemporaryDirectory(prefix="parity-rates-") as folder:
        bench.data_file(Path(folder))
        rows = run_parts(Path(folder), args.seeds, args.jobs, begun)
    import torch

    lines = table(rows)
    frauds, honest = summary(lines, False), summary(lines, True)
    show(lines, frauds, honest)
    machine = environment(ROOT)
    document = {
        "command": "python benchmarks/parity_rates.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "hardware": {"cpu": machine.cpu, "cores": machine.cores, "memory_gib": machine.memory_gib},
        "versions": {
            "hotlap": hotlap.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "seeds": args.seeds,
        "wall_s": round(time.monotonic() - begun),
        "frauds_missed": frauds,
        "honest_refused": honest,
        "cases": lines,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
