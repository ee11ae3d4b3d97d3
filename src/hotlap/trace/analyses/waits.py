"""Idle time in pieces, each booked to one cause; waits of the host for the device, and the idle time that follows from
them. `gaps.py` states the rule."""

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from hotlap.trace.intervals import NONE, Intervals, covered, intersection, union
from hotlap.trace.view import Ints, View

from .grouping import remembered

Codes = npt.NDArray[np.int8]

CAUSES: Final = (
    "python",
    "launch",
    "input",
    "communication",
    "profiler",
    "allocator",
    "sync",
    "copy",
    "between kernels",
    "unknown",
)
PYTHON, LAUNCH, INPUT, COMMUNICATION, PROFILER, ALLOCATOR, SYNC, COPY, BETWEEN, UNKNOWN = range(len(CAUSES))
PIECE: Final = {"gap": pl.Int64, "start": pl.Int64, "end": pl.Int64, "cause": pl.Int8, "row": pl.Int64}
"""A piece of a device's idle time. gap: its number; cause: index into CAUSES; row: of `host`, the event that it is
booked to, -1 for none. Pieces are disjoint and in order."""
WAITS: Final = re.compile(
    r"^(cuda|hip|cu)(Stream|Device|Event|Ctx|Thread)Synchronize|^(cuda|hip)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol)?(_ptds)?$"
    r"|^cuMemcpy(HtoD|DtoH)(_v2)?(_ptds)?$"
)
"""Calls in which the host waits for the device, whatever they copy."""
SHORT: Final = 0.1
"""Of the longest wait of a group: who waits less finds the device as that one left it, with nothing to do."""


@remembered
def waiting_calls(view: View) -> Ints:
    """Rows of `host`, sorted: calls in which the host waits for the device. Those of WAITS, and asynchronous copies
    from or to pageable memory, which the driver stages."""
    host = view.trace.host
    rows = np.nonzero((host["cat"] == "runtime").to_numpy())[0]
    names = host["name"].gather(rows)
    waiting = names.is_in([name for name in names.unique() if WAITS.match(name)]).to_numpy()
    return np.union1d(rows[waiting], pageable_copies(view, r"Pageable.*->.*Device|Device.*->.*Pageable"))


def pageable_copies(view: View, direction: str = "Pageable.*->.*Device") -> Ints:
    """Rows of `host`, sorted: calls that copy pageable memory, by default to the device."""
    device = view.trace.device
    copies = (device["cat"] == "memcpy") & (device["launch"] >= 0)
    names, rows = device["name"].filter(copies), device["launch"].filter(copies).to_numpy()
    return np.unique(rows[names.str.contains(direction).to_numpy()]).astype(np.int64)


def pieces_of(*columns: Ints | Codes) -> pl.DataFrame:
    """Pieces by the columns of PIECE."""
    return pl.DataFrame(dict(zip(PIECE, columns, strict=True)), schema=PIECE)


def after_waits(view: View, whole: pl.DataFrame, waits: Ints) -> pl.DataFrame:
    """Book the time that a wait has cost to it: the first of what follows, as long as the wait."""
    start, length = whole["start"].to_numpy(), (whole["end"] - whole["start"]).to_numpy()
    eligible = np.nonzero(np.isin(whole["cause"], (PYTHON, LAUNCH)))[0]
    if not len(waits) or not len(eligible):
        return whole
    begins, ends, group, credit, longest = _grouped(view, waits, _within_waits(whole, waits))
    credit += _lost(view, whole, begins, ends, group)
    last = np.searchsorted(ends, start[eligible], side="right") - 1
    eligible, last = eligible[last >= 0], last[last >= 0]
    mine = group[last]  # ascending, as pieces and waits are in order
    length = length[eligible]
    before = np.cumsum(length) - length
    first = np.searchsorted(mine, mine, side="left")
    taken = np.clip(credit[mine] - (before - before[first]), 0, length)
    return _split(whole, eligible[taken > 0], taken[taken > 0], longest[mine[taken > 0]])


def _within_waits(whole: pl.DataFrame, waits: Ints) -> Ints:
    """Idle time already booked to each wait."""
    mine = whole.filter(pl.col("cause").is_in((SYNC, COPY)) & pl.col("row").is_in(waits))
    booked = np.zeros(len(waits), np.int64)
    np.add.at(booked, np.searchsorted(waits, mine["row"]), (mine["end"] - mine["start"]).to_numpy())
    return booked


def _lost(view: View, whole: pl.DataFrame, begins: Ints, ends: Ints, group: Ints) -> Ints:
    """How much earlier the host would have been at each group of waits without the profiler, ns, beyond what the device
    stood still for it; 0 where that is not known."""
    phases, share = _issuing(view)
    first = np.searchsorted(group, np.arange(group[-1] + 1))
    until, since = begins[first], np.concatenate([[view.on_host.window.start_ns], ends[first[1:] - 1]])
    until = np.maximum(until, since)
    late = union(whole["start"].to_numpy(), whole["end"].to_numpy())
    lost = (share * covered(phases, since, until)).astype(np.int64) - covered(intersection(phases, late), since, until)
    more: Ints = np.maximum(0, lost)
    return more


@remembered
def _issuing(view: View) -> tuple[Intervals, float]:
    """When the host issues work in the phases of hotlap's in which it does not wait, and the share of that time that
    the profiler takes."""
    if view.unprofiled is None:
        return NONE, 0.0
    host, window = view.trace.host, view.on_host.window
    start, end = view.host("start"), view.host("start") + view.host("dur")
    waits = np.sort(start[waiting_calls(view)])
    found, profiled, usual = [], 0.0, 0.0
    for name in ("forward", "backward", "optimizer"):
        rows = np.nonzero(((host["cat"] == "annotation") & (host["name"] == f"hotlap:{name}")).to_numpy())[0]
        rows = rows[view.on_host.in_window(start[rows])]
        ms = getattr(view.unprofiled, name)
        if len(rows) and ms > 0 and not (np.searchsorted(waits, end[rows]) > np.searchsorted(waits, start[rows])).any():
            found.append(rows)
            profiled += float((end - start)[rows].sum()) / window.count / 1e6
            usual += ms
    if profiled <= usual:
        return NONE, 0.0
    rows = np.concatenate(found)
    return union(start[rows], end[rows]), 1 - usual / profiled


def _grouped(view: View, waits: Ints, booked: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """(start and end of each wait, its group; ns and longest call of each group), in order of end. A wait joins the
    group before it where no kernel was launched since, or where it is short beside the group's longest."""
    start, dur = view.host("start")[waits], view.host("dur")[waits]
    order = np.argsort(start + dur, kind="stable")
    waits, start, dur, booked = waits[order], start[order], dur[order], booked[order]
    launch = view.trace.device["launch"].filter(view.trace.device["cat"] == "kernel").to_numpy()
    issued = np.sort(view.host("start")[launch[launch >= 0]])
    counts = np.searchsorted(issued, start)
    launched = np.diff(counts, prepend=counts[0]) != 0
    group = np.cumsum(launched & ~_short_after_long(dur, launched))
    credit = np.zeros(group[-1] + 1, np.int64)
    np.add.at(credit, group, np.maximum(0, dur - booked))
    by_length = np.lexsort((dur, group))
    longest = waits[by_length[np.searchsorted(group[by_length], np.arange(len(credit)), side="right") - 1]]
    return start, start + dur, group, credit, longest


def _short_after_long(dur: Ints, launched: Ints) -> Ints:
    """Which waits are shorter than SHORT of the longest of their group, each by the groups that this makes."""
    short = np.zeros(len(dur), bool)
    longest = 0
    for at, (ns, new) in enumerate(zip(dur.tolist(), launched.tolist(), strict=True)):
        short[at] = ns < SHORT * longest
        longest = max(longest, ns) if short[at] or not new else ns
    return short


def _split(whole: pl.DataFrame, which: Ints, taken: Ints, row: Ints) -> pl.DataFrame:
    """The same pieces, where the first `taken` ns of some are booked to a wait."""
    first = whole[which].with_columns(end=pl.col("start") + taken, cause=pl.lit(SYNC, pl.Int8), row=pl.Series(row))
    rest = whole["start"].to_numpy().copy()
    rest[which] += taken
    kept = whole.with_columns(start=pl.Series(rest)).filter(pl.col("start") < pl.col("end"))
    return pl.concat([first, kept]).sort("start", maintain_order=True)
