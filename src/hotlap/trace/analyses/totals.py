"""Sums of a window by name, in integer nanoseconds, as comparisons need them: of one rank with another, of one trace
with another. Calls that cross the window's edges count with the part inside."""

import re
from typing import Final

import numpy as np
import polars as pl

from hotlap.trace.view import View

from .host_time import of_main_thread, owned

Totals = dict[str, tuple[int, int]]
"""Name to (ns, count)."""

INPUT: Final = r"^enumerate\(DataLoader\)#"
"""How torch names the time inside a loader's `next`."""
SYNCS: Final = r"^(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize"
LAUNCHES: Final = r"^(cuda|cu|hip)(Graph|Module|Ext)?Launch"
STEP: Final = "ProfilerStep"
"""The plain name of the profiler's mark of a step: what it owns is Python outside of any op."""
CHANGING: Final = re.compile(r"(?<=^ProfilerStep)#\d+$|(?<=\.py)\(\d+\)(?=: )| at 0x[0-9a-f]+")
"""What differs from step to step, run to run or version to version in the name of one and the same thing."""


def unnumbered(name: str) -> str:
    """A name without the number of a step, the line where a function begins, an address."""
    return CHANGING.sub("", name)


def spoken(name: str) -> str:
    """A plain name of host time, in words where it has some."""
    return "Python outside of any op" if name == STEP else name


def kernels(view: View) -> Totals:
    """Device work by name; sums over kernels, more than the union where streams overlap."""
    return _totals(view.work.select("name", (pl.col("to") - pl.col("from")).alias("ns")))


def ops(view: View) -> Totals:
    """Device work by the op that launched it; `(no op)` for the rest."""
    op = view.work["op"].to_numpy()
    names = view.trace.host["name"].gather(np.maximum(op, 0)) if len(view.trace.host) else pl.Series([""] * len(op))
    said = pl.DataFrame({"name": names, "op": op, "ns": view.work["to"] - view.work["from"]})
    named = pl.when(pl.col("op") >= 0).then("name").otherwise(pl.lit("(no op)"))
    return _totals(said.with_columns(named.alias("name")))


def host(view: View) -> Totals:
    """Time of host events of the thread that trains, without what they enclose; calls of the runtime apart."""
    rows = of_main_thread(view)
    events = view.trace.host.select("name", "cat")[rows].with_columns(ns=owned(view, rows)[2])
    return _totals(events.filter(~pl.col("cat").is_in(["runtime", "overhead"])))


def inputs(view: View) -> Totals:
    """Waits inside loaders, on any thread."""
    return _totals(_clipped(view, INPUT))


def syncs(view: View) -> Totals:
    """Calls of the runtime that wait for the device, on any thread."""
    return _totals(_clipped(view, SYNCS).filter(pl.col("cat") == "runtime"))


def launches(view: View) -> Totals:
    """Calls of the runtime that launch kernels and graphs."""
    return _totals(_clipped(view, LAUNCHES).filter(pl.col("cat") == "runtime"))


def _clipped(view: View, pattern: str) -> pl.DataFrame:
    """Host events of such names in the window: name, cat, and the ns inside."""
    start, end = pl.col("start"), pl.col("start") + pl.col("dur")
    first, last = view.window.start_ns, view.window.end_ns
    inside = (start < last) & ((end > first) | ((pl.col("dur") == 0) & (start >= first)))
    ns = pl.min_horizontal(end, pl.lit(last)) - pl.max_horizontal(start, pl.lit(first))
    return view.trace.host.filter(inside & pl.col("name").str.contains(pattern)).select("name", "cat", ns.alias("ns"))


def _totals(rows: pl.DataFrame) -> Totals:
    sums = rows.group_by("name", maintain_order=True).agg(pl.col("ns").sum(), pl.len())
    return {name: (ns, count) for name, ns, count in sums.iter_rows()}
