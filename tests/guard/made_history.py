"""Entries and run folders for tests of the history."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hotlap.records.files import write_record
from hotlap.records.history import Entry
from hotlap.records.run import Versions
from made_runs import ENVIRONMENT, diagnosis_of, folder_of

DAY = 86400.0
BEGAN = 1_790_000_000.0
MACHINE = msgspec.structs.replace(ENVIRONMENT, host="one")


def commit_of(number: int) -> str:
    """A commit's hash."""
    return f"{number:08x}" * 5


def entry(number: int = 0, step_ms: float | None = 10.0, **fields: Any) -> Entry:
    """A run a day, each of the commit of its day."""
    made: dict[str, Any] = {
        "key": f"{number:032x}", "kind": "run", "project": "p", "command": ("python", "train.py"), "host": "one",
        "device": "x", "started": BEGAN + number * DAY, "cwd": "/w", "commit": commit_of(number),
        "commit_time": BEGAN + number * DAY - 60, "dirty": False, "status": "finished", "exit_code": 0, "torch": "2.13",
        "step_ms": step_ms, "p10_ms": step_ms and 0.9 * step_ms, "p90_ms": step_ms and 1.1 * step_ms, "steps": 50,
        "folder": f"/w/r{number}", "environment": MACHINE, "versions": Versions(python="3.11", torch="2.13"),
    }  # fmt: skip
    return Entry(**{**made, **fields})


def entries(values: Sequence[float], **fields: Any) -> list[Entry]:
    """A run for each step time."""
    return [entry(number, value, **fields) for number, value in enumerate(values)]


def run_folder(path: Path, number: int = 0, step_ms: float = 10.0, **run: Any) -> Path:
    """The folder of a run that has its verdict."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = msgspec.structs.replace(MACHINE, git_commit=commit_of(number))
    folder_of(path, **{"started": BEGAN + number * DAY, "environment": machine, "wall_s": 60.0, **run})
    write_record(path / "diagnosis.json", diagnosis_of(step_ms, bound="compute", steady_steps=50))
    return path


def noisy(values: object, noise: float = 0.01, seed: int = 0) -> list[float]:
    """Values with noise, the same each time."""
    made = np.asarray(values, float) * np.exp(np.random.default_rng(seed).normal(0, noise, len(values)))  # type: ignore[arg-type]
    return [float(one) for one in made]


def stepped(*parts: tuple[int, float]) -> list[float]:
    return [value for count, value in parts for _ in range(count)]
