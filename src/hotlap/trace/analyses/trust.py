"""What stands against the numbers of a trace, worst first.

* Overhead: profiled step over the same command's step without the profiler.
* Unlinked: share of device work whose launch is not in the trace; launched before the recording, or lost.
* Graphs under-recorded. A graph runs the same work at each launch, so launches of one graph should show equally much.
  Fellows are launches from the same op at the same place in the step. A launch is short if it shows less than the most
  of its fellows, but not if the same lower number (but 0) occurs twice among them: then another graph runs there.
* Lost and repaired events of a broken file, and what it says of them.
* What is missing: device work though there are launches, steps, shapes, stacks.

How bad something is, is judged by the share of the numbers that it touches; what only leaves a question open is last.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.durations import ms
from hotlap.records.trace import Trust
from hotlap.trace.nsys import GRAPH
from hotlap.trace.view import View

from . import totals

NOTED: Final = 0.05
"""Overhead from which it is said."""
UNLINKED: Final = 0.01
"""Share of unlinked work from which it is said."""
GRAPH_LAUNCH: Final = r"^(cuda|cu|hip)GraphLaunch"
OPEN_QUESTION: Final = 1e-4
"""How bad it is if something is not known rather than wrong."""


Doubt = tuple[float, str]
"""How bad, 0 to 1, about the share of the numbers that is touched; and what is said."""


def trust(view: View, unprofiled_step_ms: float | None = None) -> Trust:
    """What stands against the numbers of this trace. unprofiled_step_ms: of the same command without the profiler."""
    step = view.window.span_ns / view.window.count / 1e6
    overhead = step / unprofiled_step_ms if unprofiled_step_ms else None
    unlinked = int((view.work["launch"] < 0).sum()) / max(1, len(view.work))
    short, graphs = under_recorded(view)
    doubts = [
        *_missing(view),
        *_of_overhead(overhead, step),
        *_of_unlinked(unlinked, view),
        *_of_graphs(short, graphs),
        *_of_losses(view),
    ]
    return Trust(
        overhead=overhead,
        unlinked=unlinked,
        graph_under_recorded=short,
        lost_events=view.trace.losses.events,
        repaired_events=view.trace.losses.repaired,
        said=tuple(said for _, said in sorted(doubts, key=lambda doubt: -doubt[0])),
    )


def _missing(view: View) -> Iterator[Doubt]:
    trace, window = view.trace, view.window
    launches = int(trace.host["name"].str.contains(totals.LAUNCHES).sum())
    exported = trace.schema_version.startswith("nsys")
    if launches and not len(trace.work):
        said = f"no device work was recorded, though there are {launches} launches: device times are unknown"
        yield 1.0, said
    if not window.steps:
        yield 0.5, "no steps were found, so the whole trace counts as one step"
    elif window.found_by != "ProfilerStep":
        said = f"no ProfilerStep ranges (no profiler.step() in the loop): steps are taken from {window.found_by}"
        yield 0.01, said
    if not len(trace.shapes):
        lacks = "an export of nsys has no shapes" if exported else "no shapes (record_shapes=True)"
        yield OPEN_QUESTION, f"{lacks}: no FLOPs, no roofline"
    if exported and (trace.device["name"].str.starts_with(GRAPH) & (trace.device["graph"] >= 0)).any():
        yield (
            0.01,
            "CUDA graphs were recorded whole (nsys profile --cuda-graph-trace=node), so their kernels are missing",
        )
    if not view.lines and not (trace.host["cat"] == "python").any():
        lacks = "an export of nsys has no Python stacks" if exported else "no stacks (with_stack=True)"
        yield OPEN_QUESTION, f"{lacks}: lines of your code are unknown"


def _of_overhead(overhead: float | None, step_ms: float) -> Iterator[Doubt]:
    if overhead is None:
        yield OPEN_QUESTION / 2, "the profiler's overhead is unknown, as no step time without it is known"
        return
    against = f"{ms(step_ms)} against {ms(step_ms / overhead)} without it"
    if overhead > 1 + NOTED:
        yield 1 - 1 / overhead, f"the profiler makes steps {overhead:.2f} times as long: {against}"
    if overhead < 1 - NOTED:
        yield 1 - overhead, f"steps are shorter under the profiler ({against}); was it the same work?"


def _of_unlinked(share: float, view: View) -> Iterator[Doubt]:
    if share >= UNLINKED:
        count = int((view.work["launch"] < 0).sum())
        what = f"{count} of {len(view.work)} pieces of device work ({share:.0%}) have no launch in the trace"
        yield share / 2, f"{what}; they were launched before the recording, or lost. Their ops and lines are unknown"


def _of_losses(view: View) -> Iterator[Doubt]:
    losses, trace = view.trace.losses, view.trace
    events = len(trace.host) + len(trace.device) + len(trace.memory)
    why = f" ({'; '.join(losses.why)})" if losses.why else ""
    lost = bool(losses.events or losses.bytes)
    if lost:
        torn = f"{losses.events} events" if losses.events else f"{losses.bytes} bytes at the end"
        yield max(0.02, losses.events / max(1, losses.events + events)), f"{torn} could not be read{why}"
    if losses.repaired:
        said = f"{losses.repaired} events were read after a repair{'' if lost else why}"
        yield 0.1 * losses.repaired / max(1, events), said


def _of_graphs(short: int, graphs: int) -> Iterator[Doubt]:
    if short:
        said = (
            f"{short} of {graphs} CUDA graph launches show less work than others of the same graph: some was not "
            "recorded"
        )
        yield short / graphs, said


def under_recorded(view: View) -> tuple[int, int]:
    """(launches of graphs in the window that show too little work, launches of graphs in it)."""
    launches = _graph_launches(view.on_host)
    if not len(launches):
        return 0, 0
    fellows = launches.with_columns(
        pl.col("pieces").max().over("op", "place").alias("most"), pl.len().over("op", "place", "pieces").alias("alike")
    )
    certain = (pl.col("alike") < 2) | (pl.col("pieces") == 0)
    return len(fellows.filter((pl.col("pieces") < pl.col("most")) & certain)), len(launches)


def _graph_launches(view: View) -> pl.DataFrame:
    """Launches of graphs in the window: pieces (of work, in the whole trace), op (name of what encloses it) and place
    (its number within step and op)."""
    host = view.trace.host.with_row_index("row")
    inside = (pl.col("start") >= view.window.start_ns) & (pl.col("start") < view.window.end_ns)
    rows = host.filter((pl.col("cat") == "runtime") & pl.col("name").str.contains(GRAPH_LAUNCH) & inside)
    work = view.trace.work.filter(pl.col("launch") >= 0).group_by("launch").agg(pl.len().cast(pl.Int64).alias("pieces"))
    counted = rows.select(pl.col("row").cast(pl.Int32), "start", "parent").join(
        work, left_on="row", right_on="launch", how="left", maintain_order="left"
    )
    parents = [totals.unnumbered(host["name"][parent]) if parent >= 0 else "" for parent in counted["parent"].to_list()]
    steps = np.array([start for start, _ in view.window.steps], np.int64)
    return counted.with_columns(
        pl.col("pieces").fill_null(0),
        pl.Series("op", parents, pl.String),
        pl.Series("step", np.searchsorted(steps, counted["start"].to_numpy(), side="right"), pl.Int64),
    ).with_columns(pl.int_range(pl.len()).over("step", "op").alias("place"))
