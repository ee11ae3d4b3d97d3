"""Why the device was idle: each idle nanosecond booked to one cause, by what the host did then.

A gap is a maximal stretch of the window in which the device runs no work (the idle time of `breakdown`). The work that
ends it is the first to start on that device at the gap's end; `L` is the call that launched it, on thread T.

Of a gap [a, b), the part after the host was done issuing is booked by the queue:

* `between kernels`: the next work was queued before a (L returned by then, or L is a graph launch that already runs).
  All of the gap: the device's own pause between pieces of work, or work that waits for an event of another stream.
* `launch`: from L's start to b, the call itself and the latency behind it; `copy` where L copies pageable memory, which
  the host has to stage.

The rest, before L starts, is cut at every start and end of a host event and booked by the innermost event open then on
T. Where T has no event open but Python or annotations, the main thread is asked, then the other threads that launch;
where none of them is in an op or a call it is T's Python. By the event (the first that fits):

* `input`: within `enumerate(DataLoader)#...__next__`, or hotlap's range of the phase, in which workers are started.
* `communication`: within an op of torch.distributed (`c10d::`, `nccl:`, `gloo:`): the host waits for other ranks.
* `profiler`: while the profiler takes time of its own (rows of category `overhead`).
* `allocator`: a call that takes memory from the driver or gives it back (cudaMalloc, cudaFree, cudaHostAlloc, ...).
* `sync`: a call in which the host waits for the device (`waiting_calls`); `copy` for a pageable copy to the device.
* `launch`: any other op, runtime or driver call: eager dispatch.
* `python`: a Python function or no event: the user's code between ops.

Four rules add to that:

* After a sync. A wait of w ns on an asked thread holds the host up by w ns, which it could have been ahead. So of the
  time after a wait and before the end of the next, the first w ns of `launch` and `python` are booked to `sync` and to
  that wait: idle time that would not be there if the call had not waited. Idle time within the call comes off w. Waits
  with no kernel launch between them (`.item()` and then the copies of the next batch), and waits that are short beside
  one before (`print(loss)` waits once for the device and then for each little kernel that it formats with) count as
  one, with the sum of their time, booked to the longest. Under the profiler the host comes later to a wait, and waits
  less: where the phases of unprofiled steps are known, w is longer by what the host lost since the wait before, less
  what the device stood still meanwhile (`waits.py`).
* Between the nodes of a backward. Where no asked thread is in an op or a call, and the last one as well as the next are
  on the same thread, not the main one, autograd's engine is at work: `launch`, booked to the next.
* In an op that waits. What is still `launch` within an op that is there for a wait (`BRINGS`: `.item()`, a boolean
  index, a copy to the host) is booked to that wait: without it the op would not be there.
* No known launch. Before work whose call is not in the trace `launch` and `python` read `unknown`. Where no work
  follows at all, the host is asked up to the window's end.

Every idle nanosecond is in one piece, so the sum over gaps is the idle time of `breakdown`.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import Gap
from hotlap.trace.intervals import Intervals, complement
from hotlap.trace.links import enclosing, outermost, ranges
from hotlap.trace.tables import WORK
from hotlap.trace.view import Bools, Ints, View

from .grouping import host_of, outermost_op, packed_places, remembered, unpacked
from .memory import CALLS
from .waits import (
    ALLOCATOR,
    BETWEEN,
    CAUSES,
    COMMUNICATION,
    COPY,
    INPUT,
    LAUNCH,
    PROFILER,
    PYTHON,
    SYNC,
    UNKNOWN,
    Codes,
    after_waits,
    pageable_copies,
    pieces_of,
    waiting_calls,
)

LOADS: Final = re.compile(r"^enumerate\(DataLoader\)|^hotlap:data$")
BRINGS: Final = re.compile(
    r"^aten::(item|_local_scalar_dense|is_nonzero|equal|nonzero(_numpy)?|masked_select|_?unique\w*|index|index_put_"
    r"|_index_put_impl_|to|_to_copy|copy_)$"
)
"""Ops that bring values to the host, where they wait for the device."""
COMMUNICATION_NAMES: Final = ("c10d::", "nccl:", "gloo:")
_NEVER: Final = -(2**62)
MAX_THREADS: Final = 8
"""Launching threads that are asked, those with most launches first."""


def gaps(view: View) -> tuple[Gap, ...]:
    """Idle time of all devices by (cause, doing, place), dearest first."""
    found = [_named(view, pieces(view, device), device) for device in view.devices]
    if not found or not sum(map(len, found)):
        return ()
    keys = ["cause", "doing", "place"]
    each = pl.concat(found).group_by(*keys, "device", "gap").agg(pl.col("ns").sum())
    total = each.group_by(*keys).agg(
        pl.col("ns").sum().alias("idle"), pl.len().alias("count"), pl.col("ns").max().alias("longest")
    )
    return tuple(
        Gap(
            cause=CAUSES[row["cause"]],
            idle_ns=row["idle"],
            count=row["count"],
            longest_ns=row["longest"],
            doing=row["doing"],
            where=unpacked(row["place"]),
        )
        for row in total.sort(["idle", *keys], descending=[True, False, False, False]).iter_rows(named=True)
    )


# pieces


@remembered
def _pieces_of_devices(view: View) -> dict[int, pl.DataFrame]:
    return {device: _pieces(view, device) for device in view.devices}


def pieces(view: View, device: int) -> pl.DataFrame:
    """The idle time of one device, piece by piece (`waits.PIECE`). Made once for each view, as `gaps`,
    `syncs` and `timeline` ask."""
    return _pieces_of_devices(view)[device]


def _pieces(view: View, device: int) -> pl.DataFrame:
    window = view.window
    idle = complement(view.busy(device), window.start_ns, window.end_ns)
    late = _late(view, device, idle)
    threads = _threads(view, device, late)
    waits = waiting_calls(view)
    waits = waits[_thread_of(view, waits, threads) >= 0]  # a wait elsewhere holds nobody up
    before, after = _host_pieces(view, threads, late, waits), np.nonzero(late.until < idle.ends)[0]
    launching = pieces_of(after, late.until[after], idle.ends[after], late.tail[after], late.launch[after])
    whole = pl.concat([before, launching]).sort("start", maintain_order=True)
    return _in_waiting_ops(view, after_waits(view, whole, waits), waits)


def _in_waiting_ops(view: View, whole: pl.DataFrame, waits: Ints) -> pl.DataFrame:
    """Book what is left of `launch` within an op that is there for a wait to that wait."""
    waits = waits[~np.isin(waits, pageable_copies(view))]
    launches = np.nonzero((whole["cause"] == LAUNCH).to_numpy() & (whole["row"] >= 0).to_numpy())[0]
    if not len(waits) or not len(launches):
        return whole
    host = host_of(view)
    ops = outermost(waits, host.parent, host.named(BRINGS.match))
    call = np.full(len(view.trace.host), -1, np.int64)
    call[ops] = waits
    call[waits] = -1  # in no such op
    cause, row = whole["cause"].to_numpy().copy(), whole["row"].to_numpy().copy()
    op = enclosing(row[launches], host.parent, call >= 0)
    cause[launches[op >= 0]] = SYNC
    row[launches[op >= 0]] = call[op[op >= 0]]
    return whole.with_columns(cause=pl.Series(cause), row=pl.Series(row))


@dataclass(frozen=True)
class Late:
    """Per gap, how late its next work was launched. starts: of the gaps; until: end of the part before the launch;
    tail: cause of the part after it; launch: row of the launching call, -1 unknown; unknown: work without a launch."""

    starts: Ints
    until: Ints
    tail: Codes
    launch: Ints
    unknown: Bools


def _late(view: View, device: int, idle: Intervals) -> Late:
    work = _work(view, device)
    index = np.searchsorted(work["start"], idle.ends, side="left")
    follows = index < len(work)
    launch, first = (np.append(work[column], -1)[index] for column in ("launch", "first"))
    known = launch >= 0
    unknown = follows & ~known
    if not len(view.trace.host):
        return Late(idle.starts, idle.ends, np.zeros(len(idle), np.int8), launch, unknown)
    row = np.maximum(launch, 0)
    called = view.host("start")[row]
    queued = known & ((called + view.host("dur")[row] <= idle.starts) | (first < idle.ends))
    until = np.where(known, np.clip(called, idle.starts, idle.ends), idle.ends)
    until = np.where(queued, idle.starts, until)
    tail = np.where(queued, BETWEEN, np.where(np.isin(launch, pageable_copies(view)), COPY, LAUNCH)).astype(np.int8)
    return Late(idle.starts, until, tail, launch, unknown)


def _work(view: View, device: int) -> pl.DataFrame:
    """All work of a device that takes time, in order of start, each with the start of the first work of its launch."""
    launch = pl.col("launch").cast(pl.Int64)
    wanted = pl.col("cat").is_in(WORK) & (pl.col("device") == device) & (pl.col("dur") > 0)
    return (
        view.trace.device.lazy()
        .filter(wanted)
        .select("start", launch, pl.col("start").first().over("launch").alias("first"))
        .collect()
    )


# the host's part


def _host_pieces(view: View, threads: list[tuple[int, int]], late: Late, waits: Ints) -> pl.DataFrame:
    """The parts before launches, cut at host events and booked to what the host did."""
    gap = np.nonzero(late.until > late.starts)[0]
    starts, ends = late.starts[gap], late.until[gap]
    preferred = np.maximum(_thread_of(view, late.launch[gap], threads), 0)
    overhead = np.nonzero((view.trace.host["cat"] == "overhead").to_numpy() & (view.host("dur") > 0))[0]
    events = [view.thread(thread)[1:] for thread in threads]
    events.append((view.host("start")[overhead], (view.host("start") + view.host("dur"))[overhead]))
    cuts = [_within(np.sort(times), starts, ends) for both in events for times in both]
    at = np.unique(np.concatenate([starts, *cuts]))
    mine = np.searchsorted(starts, at, side="right") - 1
    end = np.minimum(np.append(at[1:], np.iinfo(np.int64).max), ends[mine]) if len(at) else at
    rows = np.stack([view.at(at, thread) for thread in threads])
    row = _preferred(view, rows, preferred[mine])
    cause = _causes(view, row, waits)
    node = _next_node(view, threads, at, cause == PYTHON)
    row, cause = np.where(node >= 0, node, row), np.where(node >= 0, LAUNCH, cause).astype(np.int8)
    cause[late.unknown[gap][mine] & np.isin(cause, (PYTHON, LAUNCH))] = UNKNOWN
    under = _open(view, overhead, at)
    cause, row = np.where(under >= 0, PROFILER, cause).astype(np.int8), np.where(under >= 0, under, row)
    return pieces_of(gap[mine], at, end, cause, row)


def _threads(view: View, device: int, late: Late) -> list[tuple[int, int]]:
    """Threads to ask: the main one, then those that launch work of the device in the window or what ends its last gap,
    most launches first."""
    work = view.work.lazy().filter((pl.col("device") == device) & (pl.col("launch") >= 0)).select("launch").collect()
    rows = np.concatenate([work["launch"].to_numpy(), late.launch[-1:][late.launch[-1:] >= 0]])
    calls = view.trace.host.select("pid", "tid")[rows]
    threads = [view.main_thread]
    for pid, tid, _ in calls.group_by("pid", "tid").len().sort("len", "tid", descending=True).iter_rows():
        if (pid, tid) not in threads and len(threads) < MAX_THREADS:
            threads.append((pid, tid))
    return threads


def _thread_of(view: View, rows: Ints, threads: list[tuple[int, int]]) -> Ints:
    """Index of each row's thread in the list, -1 where it is not there or there is no row."""
    index = np.full(len(rows), -1, np.int64)
    if len(view.trace.host):
        pids, tids, row = view.host("pid"), view.host("tid"), np.maximum(rows, 0)
        for number, (pid, tid) in enumerate(threads):
            index[(rows >= 0) & (pids[row] == pid) & (tids[row] == tid)] = number
    return index


def _within(times: Ints, starts: Ints, ends: Ints) -> Ints:
    """Those of the sorted times that lie inside one of the intervals."""
    low, high = np.searchsorted(times, starts, side="right"), np.searchsorted(times, ends, side="left")
    count = np.maximum(high - low, 0)
    return times[ranges(low, count)]


def _preferred(view: View, rows: Ints, preferred: Ints) -> Ints:
    """Per piece the row that counts. rows: [threads, pieces], the innermost event of each thread; preferred: index of
    the launching thread."""
    if not len(view.trace.host):
        return np.full(rows.shape[1], -1, np.int64)
    used = np.unique(rows)
    names = view.trace.host.select("name", "cat")[np.maximum(used, 0)]
    busy = (~names["cat"].is_in(["python", "annotation"])).to_numpy() & (used >= 0)
    busy |= names["name"].str.contains(LOADS.pattern).to_numpy() & (used >= 0)
    step = names["name"].str.starts_with("ProfilerStep#").to_numpy()
    rank = np.where(busy, 0, np.where((used < 0) | step, 200, 100))
    score = rank[np.searchsorted(used, rows)] + 1 + np.arange(len(rows))[:, None]
    score[preferred, np.arange(rows.shape[1])] -= 1 + preferred
    chosen = np.argmin(score, axis=0)
    row: Ints = rows[chosen, np.arange(rows.shape[1])].astype(np.int64)
    row[step[np.searchsorted(used, row)]] = -1  # a step's own range says nothing
    return row


def _causes(view: View, rows: Ints, waits: Ints) -> Codes:
    """The cause that each row stands for."""
    used, back = np.unique(rows, return_inverse=True)
    if not len(used) or not len(view.trace.host):
        return np.zeros(len(rows), np.int8)
    events = view.trace.host.select("name", "cat")[np.maximum(used, 0)]
    cause = np.where(events["cat"].is_in(["python", "annotation"]).to_numpy(), PYTHON, LAUNCH)
    allocating = [name for name in events["name"].unique() if CALLS.match(name)]
    calls = (events["cat"] == "runtime").to_numpy()
    cause[calls & events["name"].is_in(allocating).to_numpy()] = ALLOCATOR
    cause[np.isin(used, waits)] = SYNC
    cause[np.isin(used, pageable_copies(view))] = COPY
    parent = host_of(view).parent
    cause[enclosing(used, parent, _communication(view)) >= 0] = COMMUNICATION
    cause[enclosing(used, parent, _loader(view)) >= 0] = INPUT
    return np.where(used < 0, PYTHON, cause).astype(np.int8)[back]


def _next_node(view: View, threads: list[tuple[int, int]], at: Ints, wanted: Bools) -> Ints:
    """Where autograd's engine is between two nodes: the row of the next one; else -1. threads: the main one first."""
    found = np.full(len(at), -1, np.int64)
    if len(threads) < 2 or not wanted.any():
        return found
    times = at[wanted]
    last, coming, row = [], [], []
    category = view.trace.host["cat"]
    working = ((category == "op") | (category == "runtime")).to_numpy()
    for pid, tid in threads:
        rows = np.nonzero(working & (view.host("pid") == pid) & (view.host("tid") == tid))[0]
        starts = view.host("start")[rows]
        latest = np.maximum.accumulate(starts + view.host("dur")[rows])
        index = np.searchsorted(starts, times, side="right")
        last.append(np.concatenate([[_NEVER], latest])[index])
        coming.append(np.concatenate([starts, [-_NEVER]])[index])
        row.append(np.concatenate([rows, [-1]])[index])
    who = np.argmax(np.stack(last), axis=0)
    same = (who > 0) & (who == np.argmin(np.stack(coming), axis=0))
    found[wanted] = np.where(same, np.stack(row)[who, np.arange(len(times))], -1)
    return found


@remembered
def _loader(view: View) -> Bools:
    """Which rows of `host` are waits for the data loader."""
    loads: Bools = host_of(view).named(LOADS.search) & (view.trace.host["cat"] == "annotation").to_numpy()
    return loads


def _communication(view: View) -> Bools:
    """Which rows of `host` are ops of torch.distributed."""
    named = host_of(view).named(lambda name: name.startswith(COMMUNICATION_NAMES))
    talks: Bools = named & view.trace.host["cat"].is_in(["op", "annotation"]).to_numpy()
    return talks


def _open(view: View, rows: Ints, times: Ints) -> Ints:
    """Which of the rows is open at each time, -1 where none is; of several the last to start."""
    found = np.full(len(times), -1, np.int64)
    starts, ends = view.host("start")[rows], (view.host("start") + view.host("dur"))[rows]
    low, high = np.searchsorted(times, starts), np.searchsorted(times, ends)
    for row, first, end in zip(rows.tolist(), low.tolist(), high.tolist(), strict=True):  # a handful: buffer requests
        found[first:end] = row
    return found


# names and places


def _named(view: View, found: pl.DataFrame, device: int) -> pl.DataFrame:
    """Pieces with `doing` and `place` (packed): the outermost op around the row for what ops do, else the row."""
    used, back = np.unique(found["row"], return_inverse=True)
    doing = place = pl.Series([""] * len(used), dtype=pl.String)
    if len(view.trace.host):
        loader = enclosing(used, host_of(view).parent, _loader(view))
        said = np.where(loader >= 0, loader, outermost_op(view, used))
        names = zip(host_of(view).name(np.maximum(said, 0)), said.tolist(), strict=True)
        doing = pl.Series([name if row >= 0 else "" for name, row in names], dtype=pl.String)
        place = packed_places(view, used)
    return found.select(
        *("gap", "cause", (pl.col("end") - pl.col("start")).alias("ns"), pl.lit(device).alias("device")),
        *(doing.gather(back).alias("doing"), place.gather(back).alias("place")),
    )
