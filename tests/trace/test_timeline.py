"""A step as bars: nothing is lost where short neighbours are joined, and rows stay small."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from hotlap.records.timeline import KINDS, Bars, Timeline
from hotlap.trace.analyses.gaps import gaps
from hotlap.trace.analyses.memory import CELLS, memory_curves
from hotlap.trace.analyses.timeline import MOST_STREAMS, RESOLUTION, joined, timeline
from hotlap.trace.intervals import union
from hotlap.trace.view import View

from .build import call, kernel, make, note, op, python, view


def row(found: Timeline, label: str) -> Bars:
    return next(one for one in found.rows if one.label == label)


def kinds(found: Bars) -> list[str]:
    return [KINDS[kind] for kind in found.kind]


STEPS = ((0, 1000), (1000, 2100), (2100, 3000))


def stepped(**more: Any) -> View:
    host = [
        note("hotlap:data", 0, 300),
        note("hotlap:forward", 300, 200),
        note("hotlap:nonsense", 310, 5),
        op("aten::mm", 300, 150),
        op("aten::inner", 310, 20),
        call("cudaLaunchKernel", 320, 10, 1),
        op("aten::item", 600, 350),
        call("cudaStreamSynchronize", 610, 330, 9),
        op("autograd::engine::evaluate_function: X", 500, 60, tid=2),
    ]
    device = [kernel("gemm", 400, 500, 1), kernel("ncclAllReduce", 850, 50, 2, stream=20)]
    return view(make(host, device), 0, 3000, STEPS, **more)


def test_rows_of_the_median_step() -> None:
    found = timeline(stepped())
    assert found is not None
    assert (found.step, found.start_ns, found.span_ns) == (0, 0, 1000)  # 900, 1000, 1100: the middle one
    assert kinds(row(found, "phases")) == ["data", "forward"]
    ops = row(found, "training thread: ops")
    assert [found.texts[name] for name in ops.name] == ["aten::mm", "aten::item"]  # inner ops are inside theirs
    assert kinds(row(found, "training thread: calls to the driver")) == ["launch call", "wait"]
    assert row(found, "autograd thread: ops").start == (500,)
    assert kinds(row(found, "device 0, stream 20")) == ["communication"]


def test_idle_bars_are_the_gaps() -> None:
    seen = stepped()
    found = timeline(seen)
    assert found is not None
    idle = row(found, "device 0, idle")
    assert sum(idle.busy) == 1000 - 500
    whole = view(seen.trace, 0, 1000, ((0, 1000),))
    by_cause = {f"idle: {gap.cause}": 0 for gap in gaps(whole)}
    for gap in gaps(whole):
        by_cause[f"idle: {gap.cause}"] += gap.idle_ns
    assert {
        kind: sum(b for b, k in zip(idle.busy, kinds(idle), strict=True) if k == kind) for kind in by_cause
    } == by_cause


def test_host_ahead_of_the_device_shows_both_clocks() -> None:
    seen = stepped()
    ahead = View(
        seen.trace, seen.window, None, view(seen.trace, -500, 2500, ((-500, 400), (400, 1500), (1500, 2500))).window
    )
    found = timeline(ahead)
    assert found is not None
    assert (found.start_ns, found.span_ns, found.host, found.device) == (-500, 1500, (0, 900), (500, 1500))


def test_nothing_in_it() -> None:
    assert timeline(view(make(), 0, 0)) is None


@pytest.mark.parametrize("seed", range(5))
def test_joining_keeps_time_counts_and_long_bars(seed: int) -> None:
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(10_000_000, 40_000, replace=False)).astype(np.int64)
    long = random.random(20_000) < 0.001
    start, end = edges[::2], edges[1::2]
    end = np.where(long, start + 9000, end)
    end[:-1] = np.minimum(end[:-1], start[1:])
    least = 10_000_000 // RESOLUTION
    found = joined(pl.DataFrame({"start": start, "end": end, "kind": 0, "row": np.arange(20_000)}), least)
    begun, done, count, longest = (found[column].to_numpy() for column in ("start", "end", "count", "row"))
    assert len(begun) <= 2 * RESOLUTION
    assert int(count.sum()) == 20_000
    assert int(found["busy"].sum()) == int((end - start).sum())
    assert (begun[1:] >= done[:-1]).all()
    assert union(begun, done).total >= union(start, end).total
    assert ((done - begun)[count > 1] <= 3 * least).all()
    assert set(start[end - start >= least].tolist()) <= set(begun.tolist())
    first = np.searchsorted(start, begun)
    for bar in random.integers(0, len(first), 50).tolist():
        mine = slice(first[bar], first[bar] + count[bar])
        assert (end - start)[mine].max() == (end - start)[longest[bar]]


def test_what_is_not_drawn_is_counted() -> None:
    streams = [kernel("k", 10 * n, 5, stream=n) for n in range(MOST_STREAMS + 3)]
    found = timeline(view(make([op("a", 0, 500)], streams)))
    assert found is not None and found.left_out == 3
    assert sum(one.group == "device" for one in found.rows) == MOST_STREAMS


def test_python_stacks_alone_are_no_rows() -> None:
    found = timeline(view(make([python("train.py(3): main", 0, 100)])))
    assert found is not None and found.rows == ()


def test_memory_keeps_its_peak_and_stays_small() -> None:
    random = np.random.default_rng(0)
    totals = random.integers(100, 1000, 30_000)
    totals[12_345] = 5000
    memory = [
        {
            "time": int(i),
            "address": 1,
            "bytes": 1,
            "device_type": 1,
            "device": 0,
            "allocated": int(total),
            "reserved": 6000,
        }
        for i, total in enumerate(totals)
    ]
    (found,) = memory_curves(view(make([op("a", 0, 30_000)], memory=memory), 0, 30_000))
    assert found.device == 0 and len(found.time) <= 4 * CELLS
    assert max(found.allocated) == 5000 and found.time[found.allocated.index(5000)] == 12_345
    assert min(found.allocated) == totals.min()
    assert list(found.time) == sorted(found.time) and found.time[-1] == 29_999


def test_no_memory_recorded() -> None:
    assert memory_curves(view(make([op("a", 0, 10)]))) == ()
