"""Host time of the thread that trains, by function or op.

At every instant of the window one event owns the time: of those that are open, the one that began last. Self time
(`ns`) is what a name owns: its events' lengths less what began inside them. Total time is how long at least one event
of the name is open, so that recursion counts once. Names that differ by place are apart. `NOTHING` owns the time in
which no event is open, or only the profiler's own mark of a step: Python between calls (without `with_stack`), native
code, or waiting. The sum of `ns` over all rows is the window exactly.

`model_time` has of that only what lies in the phases of the model, in traces that hotlap labelled: within
`hotlap:forward`, `hotlap:backward` and `hotlap:optimizer`, and what comes between a forward and its backward (the
loss). So what makes batches, or what the loop does besides, is not taken for the model's arithmetic.

Events need not nest: an annotation begins in one Python frame and outlasts it. It keeps what it owns; the table then
has it, and with it what comes later, below the frame that it began in. Addresses of objects are left out of names.
"""

from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import HostTime

from ..links import enclosing
from ..view import View
from .grouping import Bools, Ints, host_of, places, union_ns

NOTHING: Final = "(no event: Python or native code)"
ADDRESS: Final = r" at 0x[0-9a-f]+"
MARKS: Final = "ProfilerStep#"
LABEL: Final = "hotlap:"
MODEL: Final = ("forward", "backward", "optimizer")


def host_time(view: View, top: int | None = None) -> tuple[HostTime, ...]:
    """By name and place, most self time first."""
    return _times(view, top, None)


def model_time(view: View, top: int | None = None) -> tuple[HostTime, ...]:
    """The same within the phases of the model; empty where the trace has no labels of hotlap."""
    rows = of_main_thread(view)
    inside = _in_model(view, rows)
    return _times(view, top, inside) if inside.any() else ()


def _times(view: View, top: int | None, only: Bools | None) -> tuple[HostTime, ...]:
    """By name and place. only: which of `of_main_thread` count, None for all and the time in which no
    event is open too."""
    rows = of_main_thread(view)
    starts, ends, own = owned(view, rows)
    names = view.trace.host["name"].gather(rows).str.replace_all(ADDRESS, "")  # methods of objects of a type are one
    where, here = places(view, rows)
    counted = ~names.str.starts_with(MARKS)
    counted = counted if only is None else counted & pl.Series(only)
    idle = 0 if only is not None else view.window.span_ns - int(own[counted.to_numpy()].sum())
    events = pl.DataFrame({"name": names, "place": here, "start": starts, "end": ends, "own": own})  # in order of start
    groups = (
        events.filter(counted)
        .group_by("name", "place")
        .agg(pl.col("own").sum().alias("ns"), union_ns().alias("total"), pl.len().alias("count"))
        .sort("ns", "total", "name", "place", descending=[True, True, False, False])
    )
    found = [
        HostTime(name=name, ns=ns, total_ns=total, count=count, where=where[place])
        for name, place, ns, total, count in groups.head(len(groups) if top is None else top).iter_rows()
    ]
    nothing = HostTime(name=NOTHING, ns=idle, total_ns=idle, count=0)
    return tuple(sorted([*found, nothing] if idle else found, key=lambda row: -row.ns)[:top])


def _in_model(view: View, rows: Ints) -> Bools:
    """Which rows are within a phase of the model, or begin between a forward and its backward."""
    names = view.trace.host["name"]
    label = names.str.starts_with(LABEL).to_numpy()
    mine = rows[label[rows]]
    if not len(mine):
        return np.zeros(len(rows), np.bool_)
    model = names.is_in([LABEL + phase for phase in MODEL]).to_numpy()
    around = enclosing(rows, host_of(view).parent, label)
    starts = view.host("start")
    after = np.append(mine, -1)[np.searchsorted(starts[mine], starts[rows], side="right")]  # in order of start
    lost = (after >= 0) & (names.gather(np.maximum(after, 0)) == f"{LABEL}backward").to_numpy()
    inside: Bools = np.where(around >= 0, model[np.maximum(around, 0)], lost)
    return inside


def of_main_thread(view: View) -> Ints:
    """Rows of the main thread that touch the window, in order of start."""
    rows, starts, ends = view.thread(view.main_thread)
    return rows[(ends > view.window.start_ns) & (starts < view.window.end_ns)]


def owned(view: View, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """(start, end, own time) of rows within the window.

    An event and all below it in the table cover one stretch of time, from its start to the last of their ends, and the
    stretches of siblings are apart: an event owns its length less the stretches of its children."""
    starts = np.clip(view.host("start")[rows], view.window.start_ns, view.window.end_ns)
    ends = np.clip((view.host("start") + view.host("dur"))[rows], view.window.start_ns, view.window.end_ns)
    parent = _parents(view, rows)
    covered = ends.copy()
    below = np.nonzero(parent >= 0)[0]
    above = parent[below]
    rising = below[ends[below] > ends[above]]
    while len(rising):  # as many turns as what outlasts its parent is deep
        over = parent[rising]
        before = covered[over]
        np.maximum.at(covered, over, covered[rising])
        over = np.unique(over[covered[over] > before])
        rising = over[parent[over] >= 0]
    taken = np.maximum(np.minimum(covered[below], ends[above]) - starts[below], 0)
    inner = np.bincount(above, weights=taken, minlength=len(rows))  # exact below 2**53: 104 days of ns
    return starts, ends, ends - starts - inner.astype(np.int64)


def _parents(view: View, rows: Ints) -> Ints:
    """Where each row's nearest ancestor among `rows` (sorted) is in it; -1 where there is none."""
    parent = host_of(view).parent
    kept = np.zeros(len(parent), np.bool_)
    kept[rows] = True
    position = np.cumsum(kept) - 1
    found = enclosing(parent[rows], parent, kept)
    return np.where(found >= 0, position[np.maximum(found, 0)], -1) if len(rows) else found
