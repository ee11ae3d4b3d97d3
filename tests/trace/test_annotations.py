"""Named ranges and the work in them."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.trace.analyses.annotations import annotations, outside
from hotlap.trace.read import read

from .build import call, kernel, make, note, op, view

DATA = Path(__file__).parent / "data"


def test_projection_is_from_first_start_to_last_end() -> None:
    trace = make(
        host=[note("forward", 0, 100), call("launch", 10, 5, 1), call("launch", 20, 5, 2), call("launch", 100, 5, 3)],
        device=[kernel("a", 200, 10, 1), kernel("b", 250, 50, 2, stream=8), kernel("c", 400, 10, 3)],
    )
    (row,) = annotations(view(trace))
    assert (row.name, row.instances, row.host_ns, row.kernels) == ("forward", 1, 100, 2)
    assert (row.projected_ns, row.busy_ns) == (100, 60)  # a launch at the very end is outside: [start, end)


def test_steps_are_one_name_and_sums_are_over_instances() -> None:
    trace = make(
        host=[note("ProfilerStep#9", 0, 50), note("ProfilerStep#10", 50, 50), call("l", 1, 1, 1), call("l", 60, 1, 2)],
        device=[kernel("a", 100, 30, 1), kernel("b", 120, 40, 2)],
    )
    (row,) = annotations(view(trace))
    assert (row.name, row.instances, row.host_ns) == ("ProfilerStep#", 2, 100)
    assert (row.projected_ns, row.busy_ns, row.kernels) == (70, 60, 2)


def test_ranges_nest_and_empty_ones_stay() -> None:
    trace = make(
        host=[
            note("outer", 0, 100),
            note("inner", 10, 20),
            note("empty", 40, 5),
            call("l", 15, 1, 1),
            call("l", 50, 1, 2),
        ],
        device=[kernel("a", 100, 10, 1), kernel("b", 110, 10, 2)],
    )
    rows = {row.name: (row.projected_ns, row.kernels) for row in annotations(view(trace))}
    assert rows == {"outer": (20, 2), "inner": (10, 1), "empty": (0, 0)}


def test_backward_belongs_to_the_range_of_the_thread_that_trains() -> None:
    trace = make(
        host=[
            note("ProfilerStep#1", 0, 200),
            note("backward", 50, 100),
            note("in engine", 60, 40, tid=2),
            note("loader", 60, 40, tid=3),  # not the thread that trains: what it launches itself
            op("aten::ones_like", 52, 5),
            op("autograd::engine::evaluate_function: MmBackward0", 60, 40, tid=2),
            call("launch", 70, 5, 1, tid=2),
            call("launch", 80, 5, 2, tid=3),  # another thread that launches: a loader that pins, say
            call("launch", 90, 5, 3, tid=2, pid=9),  # another process
        ],
        device=[kernel("mm", 300, 10, 1), kernel("copy", 310, 10, 2), kernel("other", 330, 10, 3)],
    )
    rows = {row.name: (row.projected_ns, row.kernels) for row in annotations(view(trace))}
    assert rows == {"ProfilerStep#": (10, 1), "backward": (10, 1), "in engine": (10, 1), "loader": (10, 1)}


def test_ranges_count_where_they_begin_with_work_that_ends_later() -> None:
    trace = make(
        host=[note("early", 0, 100), note("mine", 60, 10), call("l", 62, 1, 1)],
        device=[kernel("a", 95, 10, 1)],
    )
    (row,) = annotations(view(trace, 50, 100))
    assert (row.name, row.projected_ns) == ("mine", 10)


def test_work_outside_of_the_phases() -> None:
    host = [
        note("ProfilerStep#1", 0, 50),
        note("hotlap:forward", 0, 10),
        call("launch", 1, 1, 1),
        call("launch", 12, 1, 2),
        note("hotlap:other", 14, 10),
        call("launch", 15, 1, 3),
        note("hotlap:backward", 30, 10),
        op("autograd::engine::x", 31, 5, tid=2),
        call("launch", 32, 1, 4, tid=2),
    ]
    device = [kernel("k", 50, 5, 1), kernel("k", 60, 7, 2), kernel("k", 65, 6, 3), kernel("k", 80, 9, 4)]
    assert outside(view(make(host=host, device=device))) == 11
    assert outside(view(make(host=host[2:4], device=device))) is None


def test_a_graph_launch_brings_all_its_work() -> None:
    trace = make(
        host=[note("x", 0, 10), call("cudaGraphLaunch", 1, 1, 5)], device=[kernel("k", 20 + i, 1, 5) for i in range(4)]
    )
    (row,) = annotations(view(trace))
    assert (row.kernels, row.projected_ns, row.busy_ns) == (4, 4, 4)


@pytest.mark.parametrize("name", ["compiled-step", "fp32-step"])
def test_a_real_step_against_torchs_own_projection(name: str) -> None:
    """torch's rows begin 1 ns earlier and end 1 ns later; they leave out what inner ranges and other threads launch."""
    trace = read(DATA / f"{name}.json.gz")
    ours = {row.name: row.projected_ns for row in annotations(view(trace, int(trace.host["start"][0]), 1 << 62))}
    theirs = trace.device.filter(pl.col("cat") == "annotation")
    gpu = {row["name"]: row["dur"] - 2 for row in theirs.iter_rows(named=True)}
    step = next(found for found in gpu if found.startswith("ProfilerStep#"))
    if name == "compiled-step":  # the step's own work ends before backward: all later work is in inner ranges
        assert (gpu.pop(step), ours["ProfilerStep#"]) == (10_860_716, 30_234_127)
        assert len(gpu) == 3
    else:
        assert gpu.pop(step) == ours["ProfilerStep#"] == 207_597_097
    for found, projected in gpu.items():
        assert ours[found] == projected


def test_nothing() -> None:
    assert annotations(view(make())) == ()


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.sampled_from("ab")), max_size=6),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 80), st.integers(0, 9), st.integers(1, 2)), max_size=10),
)
def test_against_a_loop(ranges: list[Any], launches: list[Any]) -> None:
    host = [op("aten::work", 0, 1000)]  # so that the main thread is known
    host += [note(name, start, dur) for start, dur, name in ranges]
    host += [call("l", at, 1, i + 1, tid=tid) for i, (at, _, _, tid) in enumerate(launches)]
    device = [kernel("k", start, dur, i + 1) for i, (_, start, dur, _) in enumerate(launches)]
    seen = view(make(host=host, device=device), 10, 35)
    wanted: dict[str, list[int]] = {}
    times: dict[str, set[int]] = {}
    for start, length, name in ranges:
        if not 10 <= start < 35:
            continue
        mine = [(s, s + d) for at, s, d, tid in launches if tid == 1 and start <= at < start + length]
        row = wanted.setdefault(name, [0, 0, 0, 0])
        row[0] += 1
        row[1] += length
        row[2] += max(e for _, e in mine) - min(s for s, _ in mine) if mine else 0
        row[3] += len(mine)
        times.setdefault(name, set()).update(t for s, e in mine for t in range(s, e))
    rows = annotations(seen)
    assert {r.name: [r.instances, r.host_ns, r.projected_ns, r.kernels] for r in rows} == wanted
    assert {r.name: r.busy_ns for r in rows} == {name: len(seconds) for name, seconds in times.items()}
