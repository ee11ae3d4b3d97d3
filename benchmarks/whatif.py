"""What-if predictions beside what was measured when the cause was really removed.

    python benchmarks/whatif.py --out benchmarks/results/whatif-h100.json
    python benchmarks/whatif.py --record /tmp/whatif --pairs items_small,graphs_small    # on a machine with a GPU
    python benchmarks/whatif.py --judge /tmp/whatif --out benchmarks/results/whatif-h100.json   # anywhere

For each pair of benchmarks/whatif/train.py: `--compare` measures the step with and without the cause, in turns, in one
process without hotlap; `hotlap run --profile` records the step with the cause; `hotlap trace` predicts from the trace
and the unprofiled step of that run (step_ms) what it takes without. gain: step_ms over the measured step without the
cause. error: the predicted step over that one, less 1. before_ms is told to show how far two processes differ. A change
that is not among the predictions would change nothing, says the replay.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

TRAIN = Path(__file__).with_name("whatif") / "train.py"
RANKS = TRAIN.with_name("ranks.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
OF_RANKS = ("straggler", "overlap")
"""Pairs of ranks.py, which need two GPUs. They are recorded where they are named."""


def output(command: list[str]) -> list[dict[str, Any]]:
    """The JSON lines of a command's stdout. Raises RuntimeError with the end of stderr."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-1500:]}")
    return [json.loads(line) for line in lines]


def record(names: list[str], folder: Path) -> None:
    """Measure all pairs, and profile each as it is: `compared.jsonl` and a run folder for each."""
    alone, of_ranks = [name for name in names if name not in OF_RANKS], [name for name in names if name in OF_RANKS]
    with (folder / "compared.jsonl").open("a", encoding="utf-8") as file:
        for script, chosen in (([sys.executable, str(TRAIN)], alone), ([*TORCHRUN, str(RANKS)], of_ranks)):
            for row in output([*script, *chosen, "--compare"]) if chosen else ():
                file.write(json.dumps(row) + "\n")
    for name in names:
        train = [*TORCHRUN, str(RANKS)] if name in OF_RANKS else [sys.executable, str(TRAIN)]
        script = [*train, name, "--steps", "400"]
        options = ["--profile", "--steps", "20", "--out", str(folder / name)]
        subprocess.run([sys.executable, "-m", "hotlap", "run", *options, *script], capture_output=True, check=False)


def judge(folder: Path) -> list[dict[str, Any]]:
    """Predictions from the recorded runs, beside what was measured."""
    rows = []
    for line in (folder / "compared.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        run = folder / row["pair"]
        try:
            step_ms = json.loads((run / "diagnosis.json").read_text(encoding="utf-8"))["step_ms"]
            trace = output([sys.executable, "-m", "hotlap", "trace", "--json", str(run)])[-1]
            row |= judged(row, step_ms, trace)
        except (OSError, RuntimeError, KeyError, TypeError) as error:
            row["failed"] = repr(error)
        rows.append(row)
    return rows


def judged(row: dict[str, Any], step_ms: float, trace: dict[str, Any]) -> dict[str, Any]:
    """Prediction and error of a pair, from the document of `hotlap trace`."""
    replay = trace["replay"] or trace["ranks"][0]["replay"]
    found = {one["change"]: one["gain"] for one in replay["predictions"]}
    predicted = found.get(row["change"], 1.0)
    return {
        "step_ms": step_ms,
        "replayed_ms": replay["replayed_ms"],
        "profiled_ms": replay["measured_ms"],
        "gain": step_ms / row["after_ms"],
        "predicted_gain": predicted,
        "predicted_ms": step_ms / predicted,
        "error": step_ms / predicted / row["after_ms"] - 1,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst of the errors' sizes."""
    errors = {row["pair"]: abs(row["error"]) for row in rows if "error" in row}
    worst = max(errors, key=lambda name: errors[name]) if errors else None
    return {
        "pairs": len(rows),
        "failed": len(rows) - len(errors),
        "median_error": median(errors.values()) if errors else None,
        "worst_error": errors[worst] if worst else None,
        "worst": worst,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", help="names, with commas between")
    parser.add_argument("--record", type=Path, help="measure and profile, into this folder")
    parser.add_argument("--judge", type=Path, help="predict from what was recorded in this folder")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder: Path = args.judge or args.record or Path(tempfile.mkdtemp())
    if not args.judge:
        folder.mkdir(parents=True, exist_ok=True)
        record(args.pairs.split(",") if args.pairs else pairs(), folder)
        machine = folder / "machine.json"
        machine.write_text(json.dumps(this_machine()), encoding="utf-8")
    if args.record:
        return
    rows = judge(folder)
    machine = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    result = {"command": " ".join(["python", *sys.argv]), **machine, "summary": summary(rows), "rows": rows}
    for row in rows:
        print(json.dumps({key: row.get(key) for key in ("pair", "gain", "predicted_gain", "error", "failed")}))
    print(json.dumps(result["summary"]))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def pairs() -> list[str]:
    """The names of all."""
    sys.path.insert(0, str(TRAIN.parent))
    from train import PAIRS

    return list(PAIRS)


def this_machine() -> dict[str, Any]:
    """Where the pairs were measured."""
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
