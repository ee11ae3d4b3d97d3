"""Fresh processes of the zoo's scripts: what they are started with, and what one of them says."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from zoo_table import Row, printed, step_ms

ZOO = Path(__file__).with_name("zoo")
STEPS = {"tiny_gpt": 1200, "moe": 120, "dlrm": 1200, "lstm": 90, "gan": 120, "decode": 1920, "input_bound": 200}
"""Others run 60. Where many workers make batches, those that they have ready when the first step ends are used up in
the lines of warm-up."""
PRINTED = 6
"""Lines that a run prints: two of warm-up, four that count. `decode` prints one for each batch of prompts."""


def run(command: list[str], timeout_s: float, env: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr. Past its time, or with this process, it is ended with all that it started."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    late = ""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        out, err = end(process)
        late = f"\nended after {timeout_s:.0f} s"
    finally:
        if process.poll() is None:
            end(process)
    return process.returncode, out, err + late


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Interrupt first: hotlap then ends its trial, which is in a session of its own. Returns stdout and stderr."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=20)
    return "", "it could not be ended"


def hotlap(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hotlap", *arguments]


def steps_of(name: str, args: argparse.Namespace) -> int:
    """Steps of a script's measured runs."""
    return int(args.steps or (48 if args.tiny else STEPS.get(name, 60)))


def flags(name: str, args: argparse.Namespace) -> list[str]:
    """Arguments of a script's measured runs."""
    steps = steps_of(name, args)
    return ["--steps", str(steps), "--log-every", str(max(1, steps // PRINTED)), *(["--tiny"] if args.tiny else [])]


def bare(name: str, args: argparse.Namespace, twin: str = "") -> list[str]:
    """The command of a script without hotlap; with `twin="_hand"` that of its rewrite by hand."""
    return [sys.executable, str(ZOO / "with_peak.py"), str(ZOO / f"{name}{twin}.py"), *flags(name, args)]


def with_recipe(name: str, args: argparse.Namespace, recipe: Path) -> list[str]:
    """The command of a script with a recipe; `OUT` in it is the folder of a run."""
    options = ("run", "--recipe", str(recipe), "--out", "OUT")
    return hotlap(*options, sys.executable, str(ZOO / f"{name}.py"), *flags(name, args))


def caches(folder: Path, warm: bool) -> dict[str, str]:
    """The environment of all runs: with a compile cache that is empty at the start, or with the one that is there."""
    names = {"HOTLAP_CACHE": "hotlap", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    fresh = {variable: str(folder / "cache" / name) for variable, name in names.items()}
    return dict(os.environ) if warm else {**os.environ, **fresh}


def measured(command: list[str], out: Path, timeout_s: float, env: dict[str, str]) -> tuple[Row, Any]:
    """One fresh process: its row, and the lines that it printed."""
    begun = time.monotonic()
    code, text, err = run([str(out) if word == "OUT" else word for word in command], timeout_s, env)
    row: Row = {"wall_s": round(time.monotonic() - begun, 1)}
    lines = printed(text)
    problems = out / "rank-0" / "problems.jsonl"
    if problems.exists():
        row["problems"] = problems.read_text(encoding="utf-8")[:1000]
    if code:
        return row | {"error": f"exit code {code}: {err[-1500:]}"}, lines
    peak = [int(line.split()[2]) for line in text.splitlines() if line.startswith("peak memory ")]
    facts = out / "rank-0" / "facts.json"
    if facts.exists():
        peak = [json.loads(facts.read_bytes()).get("peak_memory_bytes")]
    levers = out / "rank-0" / "levers.jsonl"
    if levers.exists():
        row["levers"] = [json.loads(line) for line in levers.read_text(encoding="utf-8").splitlines()]
    try:
        row["step_ms"] = step_ms(lines)
    except ValueError as error:
        return row | {"error": str(error)}, lines
    return row | {"peak_memory_bytes": peak[-1] if peak else None, "lines_ms": [ms for _, ms in lines.values()]}, lines


def machine() -> Row:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "torch": str(torch.__version__),
        "device": device,
        "cores": len(os.sched_getaffinity(0)),
    }


def read(path: Path) -> Row:
    found: Row = json.loads(path.read_bytes()) if path.exists() else {}
    return found


def write(path: Path, document: Row) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
