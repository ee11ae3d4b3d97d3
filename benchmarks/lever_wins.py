"""Single levers under `hotlap tune`: each on a script on which it should win, and on one where it must not be kept.

    python benchmarks/lever_wins.py --out benchmarks/results/lever-wins-h100.json        # some 25 minutes on a GPU
    python benchmarks/lever_wins.py --only tf32,compile --out part.json
    python benchmarks/lever_wins.py table benchmarks/results/lever-wins-h100.json
    python benchmarks/lever_wins.py --tiny --only compile --budget 40                    # on a CPU, to see it work

Every case is `hotlap tune --only LEVERS` of an unmodified script. `wins` says whether the lever was expected to be
kept; what came of it stands beside that, as it is. A lever that only works beside another one is tuned with that. Rows
of a results file are replaced by later ones of the same case.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
FIRST_SEVEN = "loader-workers,tf32,bf16-autocast,compile,fused-optimizer,channels-last,cpu-threads"
MEMORY = ("--objective", "memory", "--slowdown", "0.6")
SEMANTIC = ("--allow", "semantic")


class Case(NamedTuple):
    """lever: the one in question; script: of this folder, with its arguments; wins: whether it should be kept; beside:
    levers that it needs; options: of the tune; budget: seconds."""

    lever: str
    script: tuple[str, ...]
    wins: bool = True
    beside: str = ""
    options: tuple[str, ...] = ()
    budget: int = 75

    @property
    def name(self) -> str:
        beside = f", {self.beside}" if self.beside else ""
        return f"{self.lever}{beside} on {' '.join(self.script)}"


LM = ("memory_levers.py", "train")
CASES = (
    # the first seven
    Case("tf32", ("planted/fp32_matmuls.py",)),
    Case("bf16-autocast", ("planted/fp32_matmuls.py",)),
    Case("fused-optimizer", ("planted/unfused_optimizer.py",)),
    Case("channels-last", ("lever_wins/convs.py",)),
    Case("compile", ("planted/elementwise_chain.py",), budget=100),
    Case("loader-workers", ("planted/slow_decode.py",)),
    Case("cpu-threads", ("lever_wins/convs.py",), wins=False),
    Case(FIRST_SEVEN, ("planted/healthy_mlp.py",), wins=False, budget=120),
    Case(FIRST_SEVEN, ("planted/healthy_conv.py",), wins=False, budget=150),
    # later ones
    Case("compile-blocks", LM, budget=120),
    Case("attention", ("lever_wins/window.py",)),
    # memory: what becomes smaller is the peak
    Case("checkpoint-blocks", LM, options=MEMORY),
    Case("activation-offload", LM, options=("--objective", "memory", "--slowdown", "4")),
    Case("optimizer-offload", LM, options=("--objective", "memory", "--slowdown", "4")),
    Case("activation-budget", (*LM, "--batch", "4"), beside="compile", options=MEMORY, budget=150),
    Case("activation-budget", ("lever_wins/compiled.py",), options=MEMORY, budget=150),
    Case("accumulate", LM, options=(*MEMORY, *SEMANTIC)),
    Case("batch-size", (*LM, "--batch", "1"), options=SEMANTIC, budget=100),
)  # fmt: skip
KEPT = ("lever", "settings", "predicted", "worth")


def tune(case: Case, tiny: bool, budget: float | None, folder: Path) -> dict[str, Any]:
    """One tune in an empty cache: its row."""
    only = f"{case.beside},{case.lever}" if case.beside else case.lever
    seconds = f"{budget or case.budget:.0f}s"
    script = [str(HERE / case.script[0]), *case.script[1:]]
    if case.script[0].startswith("planted/"):
        script += ["--device", "cpu" if tiny else "cuda"]
    elif tiny:
        script += ["--tiny"]
    options = ["--only", only, "--budget", seconds, "--steps", "40", *case.options]
    command = [sys.executable, "-m", "hotlap", "tune", "--json", "--out", str(folder / "tune"), *options]
    names = {"HOTLAP_CACHE": "hotlap", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    env = os.environ | {variable: str(folder / name) for variable, name in names.items()}
    begun = time.monotonic()
    done = subprocess.run(
        [*command, sys.executable, *script], env=env, capture_output=True, text=True, check=False, timeout=900
    )
    shown = " ".join(["hotlap tune", *options, "python", f"benchmarks/{case.script[0]}", *case.script[1:]])
    row = {"case": case.name, "command": shown, "wins": case.wins, "wall_s": round(time.monotonic() - begun, 1)}
    lines = done.stdout.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return row | {"error": f"exit code {done.returncode}: {done.stderr[-1500:]}"}
    return row | told(json.loads(lines[-1]), case)


def told(document: dict[str, Any], case: Case) -> dict[str, Any]:
    """What of tune.json lasts."""
    names = (
        "objective", "speedup", "interval", "starts", "turns", "how", "memory_before_bytes", "memory_after_bytes",
        "parity", "noise", "complete", "unproved",
    )  # fmt: skip
    found = {name: document[name] for name in names if document.get(name) is not None}
    kept = [{field: lever.get(field) for field in KEPT} for lever in document["kept"]]
    asked = set(case.lever.split(",")) | set(filter(None, case.beside.split(",")))
    trials = [
        {field: trial.get(field) for field in ("purpose", "outcome", "why", "step_ms", "ratio", "peak_memory_bytes")}
        for trial in document["trials"]
    ]
    return found | {
        "bare_ms": document["baseline"]["step_ms"],
        "bound": document["baseline"]["bound"],
        "kept": kept,
        "dropped": {lever["lever"]: lever["why"] for lever in document["dropped"] if lever["lever"] in asked},
        "as_expected": (case.lever in {lever["lever"] for lever in kept}) is case.wins,
        "trials": trials,
    }


def markdown(document: dict[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    lines = ["| lever | script | bare ms | result (95% interval, starts) | parity |", "|---|---|---|---|---|"]
    for row in document["cases"]:
        lever, _, script = row["case"].partition(" on ")
        if "error" in row:
            lines.append(f"| {lever} | {script} | | {row['error'].splitlines()[0]} | |")
            continue
        parity = row.get("parity") or {}
        level = f"{parity.get('level')}, {parity.get('steps')} steps" if row["kept"] else ""
        lines.append(f"| {lever} | {script} | {row['bare_ms']:.3g} | {result(row)} | {level} |")
    return "\n".join(lines) + "\n"


def result(row: dict[str, Any]) -> str:
    """What came of a case, in words."""
    if not row["kept"]:
        whys = {f"{lever}: {why}" for lever, why in row["dropped"].items()}
        return "dropped: " + "; ".join(sorted(whys))
    shown = f"{row['interval']['low']:.3g}–{row['interval']['high']:.3g}, {row.get('starts') or row.get('pairs')}"
    settings = {lever["lever"]: lever["settings"] for lever in row["kept"]}
    said = ", ".join(f"{name} {value}" if value else name for name, value in settings.items())
    if row.get("objective") == "memory":
        less = row["memory_before_bytes"] / row["memory_after_bytes"]
        said = f"less memory, at {row['speedup']:.3g}× the speed ({shown}): {said}"
        return f"**{less:.3g}×** {said}"
    return f"**{row['speedup']:.3g}×** ({shown}): {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", help="table FILE: print it as Markdown")
    parser.add_argument("--only", help="cases of these levers, with commas between")
    parser.add_argument("--budget", type=float, help="seconds of each tune, in place of the case's own")
    parser.add_argument("--deadline", type=float, default=7200, help="seconds; no case begins that could end later")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.results:
        print(markdown(json.loads(Path(args.results[-1]).read_bytes())), end="")
        return
    import torch

    until = time.monotonic() + args.deadline
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    machine = {"device": device, "cores": len(os.sched_getaffinity(0)), "torch": torch.__version__}
    before = json.loads(args.out.read_bytes()) if args.out and args.out.exists() else {"cases": []}
    rows = {row["case"]: row for row in before["cases"]}
    wanted = set(args.only.split(",")) if args.only else None
    for case in CASES:
        name = "first-seven" if case.lever == FIRST_SEVEN else case.lever
        if (wanted and name not in wanted) or time.monotonic() + (args.budget or case.budget) > until:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = tune(case, args.tiny, args.budget, Path(folder)) | machine | {"date": time.strftime("%Y-%m-%d")}
        rows[case.name] = row
        print(f"{case.name}: {row.get('error') or result(row)} [{row['wall_s']} s]", flush=True)
        if args.out:
            args.out.write_text(json.dumps({"cases": list(rows.values())}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
