"""Run folders as the agent leaves them, written by hand."""

import json
from pathlib import Path
from typing import Any

import msgspec

from hotlap.records.run import Environment, Facts, Run

MACHINE = Environment(hotlap="0", python="3", os="", cpu="", cores=4, memory_gib=8.0)
NO = "no hand-written attention was found"


class Quiet:
    """Nobody who is told of progress."""

    trial = step = result = staticmethod(lambda *_: None)


def begun(folder: Path) -> Path:
    """A folder with what is written when a run begins."""
    run = Run(command=("x",), cwd="/", environment=MACHINE)
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    return folder


def rank(
    folder: Path, number: int, wall_ms: float, rows: int | None = 4, world: int = 2, stopped: bool = True, **facts: Any
) -> None:
    """A process that made 30 steps."""
    path = folder / f"rank-{number}"
    path.mkdir(parents=True)
    known = Facts(pid=number, rank=number, world=world, argv=(), python="3", torch="2", mode="train", **facts)
    (path / "facts.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(known, stopped=stopped)))
    lines = [
        {"step": k, "time": 0.0, "wall_ms": wall_ms, "phases": {"forward": wall_ms}, "loss": 1.0, "samples": rows}
        for k in range(30)
    ]
    (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def leaves(folder: Path, number: int, lever: str, step: int = 7, why: str = NO) -> None:
    """A lever leaves itself out of a rank."""
    path = folder / f"rank-{number}"
    with (path / "levers.jsonl").open("a") as file:
        file.write(json.dumps({"lever": lever, "left_out": why, "step": step}) + "\n")
    with (path / "problems.jsonl").open("a") as file:
        file.write(json.dumps({"where": f"lever {lever}", "what": f"Refused: {why}", "lever": lever}) + "\n")
