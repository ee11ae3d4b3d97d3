"""Host threads of a window as chains of tasks."""

from dataclasses import dataclass, fields
from functools import reduce
from typing import Final

import numpy as np
import polars as pl

from ..intervals import NONE, Intervals, intersection, joined, union
from ..tables import WORK
from ..view import View
from .graph import Bools, Builder, Edge, Ints, Kind

SYNC: Final = (
    r"^(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)(Memcpy|Memset|Memcpy2D|Memcpy3D|Free)$"
    r"|^cuMemcpy(HtoD|DtoH|DtoD)(_v2)?$"
)
"""Calls that wait for device work."""
EVENT_WAIT: Final = r"^(cudaStreamWaitEvent|cuStreamWaitEvent|hipStreamWaitEvent)"
SHARED: Final = 0.1
"""A thread that works beside the main thread's calls for more than this share of its time runs on its own; one that
works less was started by the main thread, which waits for it."""


@dataclass(frozen=True)
class Calls:
    """Calls with a task, over all threads. row: of `host`; call, ret: tasks; thread: index."""

    row: Ints
    start: Ints
    end: Ints
    thread: Ints
    call: Ints
    ret: Ints
    sync: Bools


@dataclass(frozen=True)
class Host:
    """Host tasks of a window. last: the task that ends it on the main thread."""

    calls: Calls
    last: int
    waits: pl.DataFrame  # cudaStreamWaitEvent: row, start, thread


@dataclass
class _Thread:
    """Calls of one thread, none inside another, and the stretches in which it works for the main thread (None: it is
    the main thread or runs on its own)."""

    calls: pl.DataFrame
    bursts: Intervals | None


def host_tasks(build: Builder, view: View, start: int, end: int) -> Host:
    """Adds the tasks of all threads that launch work or wait, from start to end."""
    events = _events(view, start, end)
    keys = [view.main_thread, *_keys(events, view.main_thread)]
    main, *others = _threads(events, keys)
    bursts = reduce(joined, (t.bursts for t in others if t.bursts is not None), NONE)
    chains = [_chain(build, _pieces(main.calls, bursts), Intervals(np.array([start]), np.array([end])), release=True)]
    for thread in others:
        span = _extent(thread.calls, end) if thread.bursts is None else thread.bursts
        chains.append(_chain(build, _pieces(thread.calls, NONE), span, release=thread.bursts is None))
        if thread.bursts is not None:
            _hand_over(build, chains[0], chains[-1])
    number = {key: i for i, key in enumerate(keys)}
    waits = events.filter(pl.col("name").str.contains(EVENT_WAIT))
    threads = [number.get(key, -1) for key in zip(waits["pid"].to_list(), waits["tid"].to_list(), strict=True)]
    waits = waits.select("row", "start").with_columns(thread=pl.Series(threads, dtype=pl.Int64))
    return Host(_calls(chains), int(chains[0].tails[-1]), waits)


def _events(view: View, start: int, end: int) -> pl.DataFrame:
    """Operators and calls that begin in the window; `call`: it launches work or waits."""
    launches = view.trace.device.filter(pl.col("cat").is_in(WORK) & (pl.col("launch") >= 0))["launch"].unique()
    return (
        view.trace.host.with_row_index("row")
        .filter((pl.col("start") >= start) & (pl.col("start") < end) & pl.col("cat").is_in(["op", "runtime"]))
        .select(
            pl.col("row").cast(pl.Int64),
            *("name", "cat", "pid", "tid", "start"),
            (pl.col("start") + pl.col("dur")).clip(upper_bound=end).alias("end"),
            ((pl.col("cat") == "runtime") & pl.col("name").str.contains(SYNC)).alias("sync"),
        )
        .with_columns(call=(pl.col("cat") == "runtime") & (pl.col("sync") | pl.col("row").is_in(launches.implode())))
    )


def _keys(events: pl.DataFrame, main: tuple[int, int]) -> list[tuple[int, int]]:
    """Threads but the main one that have operators or calls."""
    active = events.filter((pl.col("cat") == "op") | pl.col("call")).select("pid", "tid").unique().sort("pid", "tid")
    return [key for key in active.rows() if key != main]


def _threads(events: pl.DataFrame, keys: list[tuple[int, int]]) -> list[_Thread]:
    """Of each key, the main thread's first."""
    each = [events.filter((pl.col("pid") == pid) & (pl.col("tid") == tid)) for pid, tid in keys]
    main = _Thread(_outermost(each[0]), None)
    begun = each[0]["start"].to_numpy()
    return [main, *(_Thread(_outermost(theirs), _bursts(theirs, begun, main.calls)) for theirs in each[1:])]


def _outermost(events: pl.DataFrame) -> pl.DataFrame:
    """Calls of a thread that are not inside another."""
    calls = events.filter(pl.col("call")).sort("start", "end", descending=[False, True])
    return calls.filter(pl.col("start") >= pl.col("end").cum_max().shift(1, fill_value=-(2**62)))


def _bursts(events: pl.DataFrame, main_starts: Ints, main_calls: pl.DataFrame) -> Intervals | None:
    """When a thread works between two events of the main thread; None where it does not take turns with it."""
    starts, ends = events["start"].to_numpy(), events["end"].to_numpy()
    turn = np.searchsorted(main_starts, starts, side="right")
    _, first = np.unique(turn, return_index=True)
    bursts = union(starts[first], np.maximum.reduceat(ends, first))
    beside = intersection(bursts, union(main_calls["start"].to_numpy(), main_calls["end"].to_numpy())).total
    return None if beside > SHARED * bursts.total else bursts


def _extent(calls: pl.DataFrame, end: int) -> Intervals:
    """From a thread's first call to the end of the window."""
    return union(calls["start"].to_numpy()[:1], np.array([end] if len(calls) else [], np.int64))


@dataclass(frozen=True)
class _Chain:
    """Tasks of a thread. pieces: what interrupts its own work, in order of start: calls, and waits for other threads
    (row -1). before, call, ret: of each piece, the task before it, and its own; heads, tails: first and last task of
    each of its stretches."""

    pieces: pl.DataFrame
    spans: Intervals
    before: Ints
    call: Ints
    ret: Ints
    heads: Ints
    tails: Ints


def _pieces(calls: pl.DataFrame, waits: Intervals) -> pl.DataFrame:
    """row, start, end and sync of a thread's calls and of its waits for other threads."""
    mine = calls.select("row", "start", "end", "sync")
    # a wait that shares time with a call is none: the thread was not waiting
    begun, ended = np.searchsorted(mine["start"], waits.ends), np.searchsorted(mine["end"], waits.starts, side="right")
    free = begun == ended
    waiting = pl.DataFrame({"start": waits.starts[free], "end": waits.ends[free]})
    waiting = waiting.select(pl.lit(-1, pl.Int64).alias("row"), "start", "end", pl.lit(False).alias("sync"))
    return pl.concat([mine, waiting]).sort("start", maintain_order=True)


def _chain(build: Builder, pieces: pl.DataFrame, spans: Intervals, *, release: bool) -> _Chain:
    """Tasks of a thread over the stretches in which it works: HOST, then CALL, RETURN and HOST for each piece."""
    pieces = pieces.filter(_stretch(spans, pieces["start"].to_numpy()) >= 0)
    row, start, end = (pieces[column].to_numpy() for column in ("row", "start", "end"))
    home, count = _stretch(spans, start), len(pieces)
    first = np.searchsorted(home, np.arange(len(spans) + 1))
    empty, last = first[:-1] == first[1:], np.append(home[1:] != home[:-1], True)[:count]
    ends = spans.ends.copy()
    ends[~empty] = start[first[:-1][~empty]]
    heads = _own_work(build, spans.starts, ends, release=release)
    call = build.add(Kind.CALL, row, start, np.where(row < 0, 0, end - start))
    ret = build.add(Kind.RETURN, row, end, 0)
    after = _own_work(build, end, np.where(last, spans.ends[home], np.append(start[1:], 0)[:count]))
    before = np.where(np.append(True, last[:-1])[:count], heads[home], np.append(-1, after[:-1])[:count])
    for src, dst in ((before, call), (call, ret), (ret, after)):
        build.link(Edge.PROGRAM, src, dst)
    tails = heads.copy()
    tails[~empty] = after[last]
    build.link(Edge.PROGRAM, tails[:-1], heads[1:])
    return _Chain(pieces, spans, before, call, ret, heads, tails)


def _stretch(spans: Intervals, times: Ints) -> Ints:
    """Index of the stretch that each time lies in, or after; -1 before all."""
    return np.searchsorted(spans.starts, times, side="right") - 1


def _own_work(build: Builder, starts: Ints, ends: Ints, *, release: bool = False) -> Ints:
    """HOST tasks."""
    return build.add(Kind.HOST, -1, starts, np.maximum(ends - starts, 0), starts if release else 0)


def _calls(chains: list[_Chain]) -> Calls:
    tasks = (
        chain.pieces.with_columns(thread=pl.lit(number, pl.Int64), call=chain.call, ret=chain.ret)
        for number, chain in enumerate(chains)
    )
    found = pl.concat(tasks).filter(pl.col("row") >= 0)
    return Calls(*(found[field.name].to_numpy() for field in fields(Calls)))


def _hand_over(build: Builder, main: _Chain, other: _Chain) -> None:
    """The main thread's waits start a thread's stretches and end with them."""
    waits = np.nonzero(main.pieces["row"] < 0)[0]
    if not len(waits):
        return
    starts, ends = (main.pieces[column].to_numpy()[waits] for column in ("start", "end"))
    begins = other.spans.starts
    turn = np.searchsorted(starts, begins, side="right") - 1
    real = (turn >= 0) & (begins < ends[turn])
    wait, heads, tails = waits[turn[real]], other.heads[real], other.tails[real]
    build.link(Edge.HANDOVER, main.before[wait], heads, begins[real] - starts[turn[real]])
    build.link(Edge.HANDOVER, tails, main.ret[wait])
