"""Device work by what it belongs to."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.records.diagnosis import Place
from hotlap.trace.analyses.grouping import places, remembered, union_ns
from hotlap.trace.analyses.kernels import UNATTRIBUTED, kernels

from .build import call, kernel, make, op, python, view


def training() -> Any:
    """A forward op under a module and a user's line, its backward on another thread, an optimizer, and lost work."""
    return make(
        host=[
            python("train.py(3): step", 0, 1000),
            python("nn.Module: Linear_0", 10, 100),
            python("/x/lib/python3/site-packages/torch/nn/linear.py(5): forward", 12, 90),
            op("aten::linear", 20, 60, sequence=7, shapes=0),
            op("aten::addmm", 25, 40, sequence=7, shapes=1),
            call("cudaLaunchKernel", 30, 5, 1),
            op("aten::_foreach_add_", 500, 50),
            call("cudaLaunchKernel", 510, 5, 3),
            call("cudaMemsetAsync", 900, 5, 4),
            op("autograd::engine::evaluate_function: AddmmBackward0", 200, 80, tid=2, sequence=7),
            op("AddmmBackward0", 205, 70, tid=2, sequence=7),
            op("aten::mm", 210, 50, tid=2, shapes=2),
            call("cudaLaunchKernel", 215, 5, 2, tid=2),
        ],
        device=[
            kernel("lost", 5, 100, 99),
            kernel("gemm", 200, 300, 1),
            kernel("gemm", 500, 400, 2),
            kernel("foreach", 900, 100, 3),
            {**kernel("Memset (Device)", 1000, 100, 4), "cat": "memset"},
            {**kernel("ProfilerStep#1", 0, 5000), "cat": "annotation"},
        ],
        shapes=[
            {"dims": "[[8, 4], [2, 4], [2]]"},
            {"dims": "[[2], [8, 4], [4, 2], [], []]"},
            {"dims": "[[4, 8], [8, 2]]"},
        ],
    )


def by(view_: Any, what: str) -> dict[str, int]:
    rows = kernels(view_, what)
    assert sum(row.share for row in rows) == pytest.approx(1, abs=1e-9)
    assert sum(row.ns for row in rows) == 1000
    assert [row.ns for row in rows] == sorted((row.ns for row in rows), reverse=True)
    return {row.key: row.ns for row in rows}


def test_names() -> None:
    assert by(view(training()), "name") == {"gemm": 700, "lost": 100, "foreach": 100, "Memset (Device)": 100}


def test_ops_are_the_outermost_that_say_something() -> None:
    found = by(view(training()), "op")
    assert found == {
        "AddmmBackward0": 400,
        "aten::linear": 300,
        "aten::_foreach_add_": 100,
        UNATTRIBUTED: 100,
        "(no op)": 100,
    }


def test_backward_belongs_to_the_module_of_its_forward() -> None:
    assert by(view(training()), "module") == {"Linear_0": 700, "(no module)": 200, UNATTRIBUTED: 100}


def test_no_modules_without_stacks() -> None:
    assert kernels(view(make(host=[call("launch", 0, 1, 1)], device=[kernel("k", 0, 9, 1)])), "module") == ()


def test_shapes_are_of_the_innermost_op() -> None:
    assert by(view(training()), "shape") == {
        "aten::mm [4, 8] [8, 2]": 400,
        "aten::addmm [2] [8, 4] [4, 2]": 300,
        "aten::_foreach_add_": 100,
        UNATTRIBUTED: 100,
        "(no op)": 100,
    }


def test_lines_are_the_users() -> None:
    rows = kernels(view(training()), "line")
    assert by(view(training()), "line") == {"train.py:3 step": 900, UNATTRIBUTED: 100}
    assert rows[0].where == Place(file="train.py", line=3, function="step")
    assert rows[0].count == 4 and rows[0].longest_ns == 400 and rows[0].share == 0.9
    assert rows[1].where is None


def test_where_is_the_place_with_most_time() -> None:
    trace = make(
        host=[
            python("a.py(1): f", 0, 10),
            call("launch", 1, 1, 1),
            python("b.py(2): g", 20, 10),
            call("launch", 21, 1, 2),
            call("launch", 23, 1, 3),
        ],
        device=[kernel("k", 50, 10, 1), kernel("k", 60, 6, 2), kernel("k", 70, 7, 3)],
    )
    (row,) = kernels(view(trace), "name")
    assert row.where == Place(file="b.py", line=2, function="g")


def test_work_is_cut_to_the_window() -> None:
    trace = make(device=[kernel("a", 0, 100), kernel("b", 90, 100), kernel("c", 300, 10)])
    rows = {row.key: (row.ns, row.longest_ns) for row in kernels(view(trace, 50, 150), "name")}
    assert rows == {"a": (50, 50), "b": (60, 60)}


def test_only_wrappers_around_a_graph_launch() -> None:
    host = [op("Torch-Compiled Region: 0/0", 0, 50), op("CompiledFunction", 1, 40), call("cudaGraphLaunch", 5, 5, 1)]
    trace = make(host=host, device=[kernel("x", 60, 10, 1), kernel("y", 70, 10, 1)])
    assert {row.key: row.count for row in kernels(view(trace), "op")} == {"CompiledFunction": 2}


def test_top_and_nothing() -> None:
    assert [row.key for row in kernels(view(training()), "name", top=1)] == ["gemm"]
    assert kernels(view(make()), "op") == ()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.sampled_from("aou")), max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(-1, 14)), min_size=1, max_size=12),
)
def test_every_grouping_keeps_the_sum(host: list[Any], device: list[Any]) -> None:
    kinds = {"a": "aten::x", "o": "autograd::engine::y", "u": "user.py(3): z"}
    rows = [
        python(kinds[k], start, dur) if k == "u" else op(kinds[k], start, dur, sequence=dur) for start, dur, k in host
    ]
    rows += [call("launch", start, 1, number + 1) for number, (start, _, _) in enumerate(host)]
    trace = make(host=rows, device=[kernel("k", start, dur, c) for start, dur, c in device])
    seen = view(trace, 5, 50)
    total = sum(max(0, min(start + dur, 50) - max(start, 5)) for start, dur, _ in device)
    for what in ("name", "op", "shape", "line"):
        found = kernels(seen, what)
        assert sum(row.ns for row in found) == total
        assert total == 0 or sum(row.share for row in found) == pytest.approx(1)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 2), st.integers(-1, 3)), max_size=12))
def test_places_at_once_are_those_of_the_view(events: list[Any]) -> None:
    make_one = [
        lambda s, d, q: python("user.py(3): z", s, d),
        lambda s, d, q: op("aten::x", s, d, sequence=q),
        lambda s, d, q: op("XBackward0", s, d, sequence=q, tid=2),
    ]
    trace = make(host=[make_one[kind](start, dur, q) for start, dur, kind, q in events])
    seen = view(trace)
    distinct, numbers = places(seen, np.arange(len(trace.host)))
    assert [distinct[n] for n in numbers] == [climbed(trace, row) for row in range(len(trace.host))]


def climbed(trace: Any, row: int, linked: bool = True) -> Place | None:
    """By hand: the innermost user's function around a row, or around the forward op of one of those around it."""
    host = trace.host.rows(named=True)
    while row >= 0:
        mine = host[row]
        if mine["cat"] == "python":
            return Place(file="user.py", line=3, function="z")
        same = [at for at, one in enumerate(host) if one["name"] == "aten::x" and one["sequence"] == mine["sequence"]]
        same = [at for at in same if host[at]["parent"] not in same]
        if linked and mine["name"] == "XBackward0" and mine["sequence"] >= 0 and same:
            forward = min(same, key=lambda at: (-host[at]["start"], at))
            if (found := climbed(trace, forward, linked=False)) is not None:
                return found
        row = mine["parent"]
    return None


@settings(max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 9)), max_size=15))
def test_measures_are_unions(rows: list[Any]) -> None:
    events = pl.DataFrame(
        [(k, s, s + d) for k, s, d in rows], dict.fromkeys(("key", "start", "end"), pl.Int64), orient="row"
    )
    found = dict(events.sort("start").group_by("key").agg(union_ns().alias("ns")).iter_rows())
    assert found == {one: len({t for k, s, d in rows if k == one for t in range(s, s + d)}) for one, *_ in rows}


def test_answers_are_remembered_while_their_object_lives() -> None:
    class Thing:
        def __init__(self, value: int) -> None:
            self.value = value

    asked: list[int] = []

    @remembered
    def value(thing: Thing) -> int:
        asked.append(thing.value)
        return thing.value

    one = Thing(1)
    assert (value(one), value(one), asked) == (1, 1, [1])
    for number in range(2, 20):  # each may get the place in memory of the one before
        assert value(Thing(number)) == number
    assert asked == list(range(1, 20))
