"""The user's lines of a profiled run, laid on its trace.

`lines.json` lists the ops of one step as the user's lines called them, seen below autograd without the profiler. The
same ops come in the same order in each recorded step, among others that are called inside them or by the backward. So
the two sequences are walked together: a recorded op that is the next in the list, or one soon after it, is that call,
and what is inside it is passed over. Ops that enclose it (`aten::linear` around `aten::addmm`) get the line of the
first call inside.
"""

from typing import Final

import numpy as np
import polars as pl

from hotlap.records.diagnosis import Place
from hotlap.records.profile import CalledOp, Lines

from .steps import find_windows
from .tables import Trace
from .view import View

SOON: Final = 8
"""Ops of the list that may be missing in the trace before the two are out of step."""
PHASES: Final = (
    ("data", r"^enumerate\(DataLoader\)|^hotlap:data$"),
    ("h2d", r"^hotlap:h2d$"),
    ("forward", r"^hotlap:forward$"),
    ("backward", r"^hotlap:backward$"),
    ("optimizer", r"^Optimizer\.(step|zero_grad)#|^hotlap:optimizer$"),
)


def places_of(trace: Trace, lines: Lines) -> dict[int, Place]:
    """Rows of `host` to places: the ops of the training thread in each step, and the annotations of phases."""
    found = _phases(trace, lines)
    view = View(trace, find_windows(trace)[1])
    pid, tid = view.main_thread
    rows = trace.host.with_row_index("row").filter((pl.col("pid") == pid) & (pl.col("tid") == tid))
    for start, end in view.window.steps or ((view.window.start_ns, view.window.end_ns),):
        step = rows.filter((pl.col("start") >= start) & (pl.col("start") < end) & (pl.col("cat") == "op"))
        found.update(_walk(step["row"].to_list(), step["name"].to_list(), view, lines))
    return found


def _phases(trace: Trace, lines: Lines) -> dict[int, Place]:
    found: dict[int, Place] = {}
    notes = trace.host.with_row_index("row").filter(pl.col("cat") == "annotation")
    for phase, pattern in PHASES:
        at = lines.places.get(phase)
        place = _place(lines, *at) if at is not None else None
        if place is not None:
            found.update(dict.fromkeys(notes.filter(pl.col("name").str.contains(pattern))["row"].to_list(), place))
    return found


def _place(lines: Lines, file: int, line: int, function: str) -> Place | None:
    return Place(file=lines.files[file], line=line, function=function) if file < len(lines.files) else None


def _walk(rows: list[int], names: list[str], view: View, lines: Lines) -> dict[int, Place]:
    found: dict[int, Place] = {}
    parents, ends = view.host("parent"), view.host("start") + view.host("dur")
    called: list[CalledOp] = list(lines.ops)
    at, over = 0, -1
    for row, name in zip(rows, names, strict=True):
        if ends[row] <= over:
            continue  # inside an op that was matched, or inside the backward
        if name.startswith("autograd::engine::evaluate_function"):
            over = int(ends[row])
            continue
        ahead = next((k for k in range(at, min(at + SOON, len(called))) if called[k][0] == name), None)
        if ahead is None:
            continue
        place = _place(lines, *called[ahead][1:])
        at, over = ahead + 1, int(ends[row])
        if place is not None:
            _give(row, place, found, view, parents)
    return found


def _give(
    row: int, place: Place, found: dict[int, Place], view: View, parents: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> None:
    """To the row, and to ops around it that have none yet."""
    categories = view.categories
    while row >= 0 and categories[row] == "op" and row not in found:
        found[row] = place
        row = int(parents[row])
