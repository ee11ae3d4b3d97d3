"""Comma-separated values: a line a step, all ranks."""

import csv
from pathlib import Path

from hotlap.records.errors import unable
from hotlap.records.phases import PHASES

from ._base import Target
from .series import Series, scalars

COLUMNS = (
    "step_ms",
    "gpu_step_ms",
    *(f"phase/{name}_ms" for name in PHASES),
    *(f"gpu_phase/{name}_ms" for name in PHASES),
    "samples_per_s",
    "tokens_per_s",
    "loss",
)


def write(series: Series, path: Path) -> list[str]:
    """`rank, step, time, kind` and the scalars of each step; empty where unknown."""
    with unable(f"write {path}"), path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("rank", "step", "time", "kind", "samples", *COLUMNS))
        for rank in series.folder.ranks:
            for step in rank.steps:
                found = scalars(step, series.clock)
                known = (found.get(name, "") for name in COLUMNS)
                table.writerow((rank.number, step.step, step.time, step.kind, step.samples, *known))  # None is empty
    return [f"{path}: one line for each step"]


TARGET = Target("csv", ".csv", write)
