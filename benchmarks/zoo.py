"""The zoo: each script naive, tuned by hand, and tuned by hotlap, side by side on one machine.

    python benchmarks/zoo.py --out benchmarks/results/zoo-h100.json
    python benchmarks/zoo.py --scripts gpt,tiny_gpt --budget 5m
    python benchmarks/zoo.py --tiny --scripts tiny_gpt        # on a CPU, to see that it works

For each script `hotlap tune` runs on the naive one; then hand-tuned and recipe runs alternate (ABBA), each a fresh
process of the same number of steady steps. Ratios are over the naive step time.
"""

import argparse
import json
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


def diagnosed(command: list[str], folder: Path, steps: int, recipe: Path | None = None) -> dict[str, Any]:
    """The diagnosis of one fresh process. Raises RuntimeError if it could not be measured."""
    options = ["--recipe", str(recipe)] if recipe else []
    done = hotlap("run", "--json", "--steps", str(steps), "--out", str(folder), *options, *command)
    diagnosis: dict[str, Any] | None = document(done)["diagnosis"]
    if diagnosis is None:
        raise RuntimeError(done.stderr[-2000:])
    return diagnosis


def input_wait(diagnosis: dict[str, Any]) -> float | None:
    """Share of the device's time that it stood still for data and for their copy."""
    phases = diagnosis.get("gpu_phases")
    return (phases["data"] + phases["h2d"]) / sum(phases.values()) if phases else None


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
    runs: dict[str, list[dict[str, Any]]] = {"hand": [], "recipe": []}
    for number, which in enumerate(("hand", "recipe", "recipe", "hand")[: args.runs]):
        command, with_recipe = (hand, None) if which == "hand" else (naive, recipe)
        runs[which].append(diagnosed(command, folder / f"{number}-{which}", args.steps, with_recipe))
    hand_ms, recipe_ms = (median(run["step_ms"] for run in runs[which]) for which in ("hand", "recipe"))
    return row | {
        "hand_ms": hand_ms,
        "recipe_ms": recipe_ms,
        "runs_ms": {which: [run["step_ms"] for run in found] for which, found in runs.items()},
        "over_hand": hand_ms / recipe_ms,
        "hand_over_naive": tuned["baseline"]["step_ms"] / hand_ms,
        "input_wait_share": input_wait(runs["recipe"][-1]),
    }


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
