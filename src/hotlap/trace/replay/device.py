"""Device work of a window as tasks, and what it waits for and is waited for."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from ..links import enclosing
from ..tables import WORK
from ..view import View
from .graph import Bools, Builder, Edge, Ints, Kind
from .host import Calls, Host

CLOCK_NS: Final = 1_000
"""How far clocks of host and device may disagree about what came first."""
EXPLAINS_NS: Final = 30_000
"""An event that some work waited for ended at most this long before it started."""


@dataclass(frozen=True)
class Device:
    """Device tasks, lane by lane (a lane is a stream of a device), in order of start within each. launched: when,
    made to grow along the lane; call: index in `Calls`, -1 unknown; prior: launched before the window."""

    task: Ints
    row: Ints
    lane: Ints
    start: Ints
    end: Ints
    launched: Ints
    call: Ints
    prior: Bools


def device_tasks(build: Builder, view: View, host: Host, start: int, end: int) -> Device:
    """Adds work that was launched in the window, and work launched before that the window began with."""
    work = _work(view, start, end)
    row, begin, dur, lane = (work[c].to_numpy().astype(np.int64) for c in ("row", "start", "dur", "lane"))
    prior, calls = work["prior"].to_numpy(), host.calls
    cut = np.where(prior, np.maximum(begin, start), begin)
    heads = prior & np.append(True, lane[1:] != lane[:-1])[: len(lane)]
    task = build.add(Kind.DEVICE, row, cut, begin + dur - cut, np.where(heads, cut, 0))
    call = _call_of(calls, np.where(prior, -1, work["launch"].to_numpy()), view)
    launched = work["launched"].to_numpy()
    same = lane[1:] == lane[:-1]
    build.link(Edge.STREAM, task[:-1][same], task[1:][same])
    if len(calls.call):
        by = np.where((call < 0) & ~prior, _last_call(calls, launched), call)
        build.link(Edge.LAUNCH, np.where(by >= 0, calls.call[by], -1), task, from_start=True)
    return Device(task, row, lane, cut, begin + dur, launched, call, prior)


def _work(view: View, start: int, end: int) -> pl.DataFrame:
    """Work of the window, in each lane in order of start, with `launched` (made to grow) and `prior`.

    Work without a known launch was launched by the operator with its External id, else with what precedes it.
    """
    host_start = view.trace.host.select(pl.col("start").alias("launched")).with_row_index("by")
    inside = (pl.col("launched") >= start) & (pl.col("launched") < end)
    prior = (pl.col("launched").is_null() | (pl.col("launched") < start)) & (pl.col("end") > start)
    by = pl.when(pl.col("launch") >= 0).then(pl.col("launch")).otherwise(pl.col("op"))
    return (
        view.trace.device.with_row_index("row")
        .filter(pl.col("cat").is_in(WORK))
        .select(
            pl.col("row", "device", "stream", "launch").cast(pl.Int64),
            *("start", "dur"),
            (pl.col("start") + pl.col("dur")).alias("end"),
            pl.when(by >= 0).then(by).cast(pl.UInt32).alias("by"),
        )
        .join(host_start, on="by", how="left")
        .sort("device", "stream", "start")
        .with_columns(
            pl.struct("device", "stream").rank("dense").cast(pl.Int64).alias("lane"),
            pl.col("launched").forward_fill().over("device", "stream"),
        )
        .with_columns(prior.alias("prior"))
        .filter(inside | pl.col("prior"))
        .with_columns(pl.when("prior").then(-(2**62)).otherwise("launched").cum_max().over("lane").alias("launched"))
    )


def _last_call(calls: Calls, times: Ints) -> Ints:
    """Index of the last call of any thread that began by each time, -1 none."""
    order = np.argsort(calls.start, kind="stable")
    index = np.searchsorted(calls.start[order], times, side="right") - 1
    return np.where(index >= 0, order[np.maximum(index, 0)], -1)


def _call_of(calls: Calls, launch: Ints, view: View) -> Ints:
    """Index of the call that is the launch, or encloses it; -1 none."""
    index = np.full(len(view.trace.host) + 1, -1, np.int64)  # the last is that of no row
    index[calls.row] = np.arange(len(calls.row))
    found: Ints = index[enclosing(launch, view.host("parent"), index[:-1] >= 0)]
    return found


# what waits for device work


def sync_edges(build: Builder, view: View, host: Host, device: Device) -> None:
    """Calls that wait: for all streams, for one, for an event, or for their own copy. A call waited for nothing that
    ended after it returned."""
    calls = host.calls
    own = _own_copies(view, calls, device)
    targets = [(call, i) for call, mine in own.items() for i in mine]
    for call in np.nonzero(calls.sync)[0].tolist():
        if call not in own:
            name = view.trace.host["name"][int(calls.row[call])]
            targets += [(call, i) for i in _awaited(call, name, calls, device)]
    waiting, index = _columns(targets)
    done = device.end[index] <= calls.end[waiting] + CLOCK_NS
    build.link(Edge.SYNC, device.task[index[done]], calls.ret[waiting[done]])


def _columns(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    return first, second


def _own_copies(view: View, calls: Calls, device: Device) -> dict[int, list[int]]:
    """Work of calls that wait for it themselves, by call: of synchronous copies, and copies of pageable memory."""
    pageable = view.trace.device["name"].gather(device.row).str.contains("Pageable").to_numpy()
    found: dict[int, list[int]] = {}
    for index in np.nonzero((device.call >= 0) & (pageable | calls.sync[device.call] if len(calls.row) else False))[0]:
        if pageable[index] <= (device.end[index] <= calls.end[device.call[index]]):
            found.setdefault(int(device.call[index]), []).append(int(index))
    return found


def _awaited(call: int, name: str, calls: Calls, device: Device) -> list[int]:
    """Index of the device work that a synchronising call waits for: per lane the last that was launched before."""
    time = int(calls.start[call])
    if re.search("Stream|Memcpy|Memset", name):
        lanes = [_lane_of_last(call, time, calls, device)]
    else:
        lanes = np.unique(device.lane).tolist()
    found = [i for lane in lanes if (i := _last_before(lane, time, device)) >= 0]
    if "Event" in name:  # which event is not known: the latest work that had ended when the call returned
        done = [i for i in found if device.end[i] <= calls.end[call] + CLOCK_NS]
        return [max(done, key=lambda i: int(device.end[i]))] if done else []
    return found


def _lane_of_last(call: int, time: int, calls: Calls, device: Device) -> int:
    """Lane of the last work that the thread launched before the call, else that anybody did."""
    thread = calls.thread[call]
    mine = (device.call >= 0) & (device.launched < time)
    if not mine.any():
        return int(device.lane[-1]) if len(device.lane) else -1
    by_thread = mine & (calls.thread[np.maximum(device.call, 0)] == thread)
    chosen = np.nonzero(by_thread if by_thread.any() else mine)[0]
    return int(device.lane[chosen[np.argmax(calls.start[device.call[chosen]])]])


def _last_before(lane: int, time: int, device: Device) -> int:
    """Last work of a lane launched before a time, -1 none."""
    low, high = np.searchsorted(device.lane, [lane, lane + 1])
    index = int(low + np.searchsorted(device.launched[low:high], time, side="left")) - 1
    return index if index >= low else -1


# streams that wait for one another


def event_edges(build: Builder, host: Host, device: Device) -> None:
    """cudaStreamWaitEvent: what a thread launches next waits for the last work launched on the other streams. The trace
    names neither stream nor event, so an edge must agree with what happened: the work had ended, and where it was not
    the last, its end explains the start."""
    calls, found = host.calls, []
    order = np.nonzero(device.call >= 0)[0]
    order = order[np.argsort(calls.start[device.call[order]], kind="stable")]
    at, by = calls.start[device.call[order]], calls.thread[device.call[order]]
    lanes = np.unique(device.lane).tolist()
    for time, thread in host.waits.select("start", "thread").rows():
        index = int(np.searchsorted(at, time))
        mine = np.nonzero(by[index : index + 64] == thread)[0]
        if index >= len(order) or len(lanes) < 2:
            continue
        waiting = int(order[index + (int(mine[0]) if len(mine) else 0)])
        found += [(i, waiting) for lane in lanes if (i := _event(lane, time, waiting, device)) >= 0]
    before, after = _columns(found)
    build.link(Edge.EVENT, device.task[before], device.task[after])


def _event(lane: int, time: int, waiting: int, device: Device) -> int:
    """The work of a lane that the waiting work waited for, -1 none."""
    if lane == device.lane[waiting]:
        return -1
    last = _last_before(lane, time, device)
    low = int(np.searchsorted(device.lane, lane))
    begun = int(device.start[waiting])
    index = min(last, low + int(np.searchsorted(device.end[low : last + 1], begun + CLOCK_NS, side="right")) - 1)
    if index < low or last < 0:
        return -1
    return index if index == last or begun - device.end[index] < EXPLAINS_NS else -1
