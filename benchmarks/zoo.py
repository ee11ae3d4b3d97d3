"""The zoo: each script naive, tuned by hand, and tuned by hotlap, side by side on one machine.

    python benchmarks/zoo.py --out benchmarks/results/zoo-h100.json
    python benchmarks/zoo.py --scripts gpt,tiny_gpt --budget 5m
    python benchmarks/zoo.py --tiny --scripts tiny_gpt        # on a CPU, to see that it works

For each script `hotlap tune` runs on the naive one; then hand-tuned and recipe runs alternate (ABBA), each a fresh
process of the same number of steady steps. Ratios are over the naive step time. The device's idle share is the part of
a profiled window in which no kernel or copy ran.
"""

import argparse
import gzip
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ZOO = Path(__file__).with_name("zoo")
TARGETS = {"gpt": 6.0, "tiny_gpt": 4.5, "input_bound": 3.0, "resnet50": 2.3}


def hotlap(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run hotlap; its stdout ends with the JSON document."""
    return subprocess.run([sys.executable, "-m", "hotlap", *arguments], capture_output=True, text=True, check=False)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The document on the last line. Raises RuntimeError with the end of stderr."""
    lines = done.stdout.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def step_ms(command: list[str], folder: Path, steps: int, recipe: Path | None = None) -> float:
    """Step time of one fresh process, ms; NaN if it could not be measured."""
    options = ["--recipe", str(recipe)] if recipe else []
    done = hotlap("run", "--json", "--steps", str(steps), "--out", str(folder), *options, *command)
    try:
        diagnosis = document(done)["diagnosis"]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return math.nan
    return float(diagnosis["step_ms"]) if diagnosis else math.nan


def idle_share(trace: Path) -> float | None:
    """Share of the window between the first and the last device event in which none ran."""
    if not trace.exists():
        return None
    with gzip.open(trace, "rt", encoding="utf-8", errors="replace") as file:
        events = json.load(file)["traceEvents"]
    busy = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} and "dur" in e
    )
    if not busy:
        return None
    covered, end = 0.0, busy[0][0]
    for begin, finish in busy:
        covered += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return 1 - covered / (end - busy[0][0])


def measure(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tune one script, then compare with its hand-tuned twin."""
    flags = ["--tiny"] if args.tiny else []
    naive = [sys.executable, str(ZOO / f"{name}.py"), *flags]
    hand = [sys.executable, str(ZOO / f"{name}_hand.py"), *flags]
    begun = time.monotonic()
    tuned = document(hotlap("tune", "--json", "--budget", args.budget, "--out", str(folder / "tune"), *naive))
    row: dict[str, Any] = {
        "script": f"{name}.py",
        "target": TARGETS.get(name),
        "speedup": tuned["speedup"],
        "interval": tuned["interval"],
        "pairs": tuned["pairs"],
        "naive_ms": tuned["baseline"]["step_ms"],
        "bound": tuned["baseline"]["bound"],
        "kept": [
            {k: lever[k] for k in ("lever", "settings", "predicted", "measured", "leave_one_out")}
            for lever in tuned["kept"]
        ],
        "dropped": tuned["dropped"],
        "parity": tuned["parity"],
        "break_even_steps": tuned["break_even_steps"],
        "tune_wall_s": round(time.monotonic() - begun, 1),
        "trials": len(tuned["trials"]),
        "noise": tuned["noise"],
    }
    recipe = folder / "tune" / "recipe.toml"
    if args.no_hand or not recipe.exists():
        return row
    times: dict[str, list[float]] = {"hand": [], "recipe": []}
    for number, which in enumerate(("hand", "recipe", "recipe", "hand")[: args.runs]):
        command, with_recipe = (hand, None) if which == "hand" else (naive, recipe)
        times[which].append(step_ms(command, folder / f"{number}-{which}", args.steps, with_recipe))
    profiled = hotlap(
        "run", "--profile", "--steps", "20", "--out", str(folder / "profile"), "--recipe", str(recipe), *naive
    )
    row |= {
        "hand_ms": median(times["hand"]),
        "recipe_ms": median(times["recipe"]),
        "runs_ms": times,
        "over_hand": median(times["hand"]) / median(times["recipe"]),
        "hand_over_naive": tuned["baseline"]["step_ms"] / median(times["hand"]),
        "idle_share": idle_share(folder / "profile" / "rank-0" / "trace.json.gz") if profiled.returncode == 0 else None,
    }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", default=",".join(TARGETS))
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", type=int, default=4, help="hand and recipe runs in all")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU")
    parser.add_argument("--no-hand", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep run folders here")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "device": device,
        "scripts": [],
    }
    root = args.keep or Path(tempfile.mkdtemp())
    for name in args.scripts.split(","):
        (root / name).mkdir(parents=True)
        try:
            row = measure(name, args, root / name)
        except RuntimeError as error:
            row = {"script": f"{name}.py", "error": str(error)}
        result["scripts"].append(row)
        print(json.dumps(row), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
