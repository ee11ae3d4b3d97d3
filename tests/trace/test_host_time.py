"""Host time of the thread that trains."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.records.diagnosis import Place
from hotlap.trace.analyses.host_time import NOTHING, host_time, model_time

from .build import call, make, note, op, python, view


def test_self_time_is_without_children() -> None:
    trace = make(
        host=[
            op("aten::linear", 100, 50),
            op("aten::addmm", 110, 30),
            call("cudaLaunchKernel", 120, 10, 1),
            op("aten::addmm", 200, 20),
            op("elsewhere", 0, 5, tid=2),
        ]
    )
    rows = {row.name: (row.ns, row.total_ns, row.count) for row in host_time(view(trace, 0, 300))}
    assert rows == {
        NOTHING: (230, 230, 0),
        "aten::addmm": (40, 50, 2),
        "aten::linear": (20, 50, 1),
        "cudaLaunchKernel": (10, 10, 1),
    }


def test_recursion_counts_once_and_places_are_apart() -> None:
    trace = make(
        host=[
            python("a.py(1): f", 0, 100),
            op("aten::to", 10, 50),
            op("aten::to", 20, 20),
            python("b.py(9): g", 100, 100),
            op("aten::to", 110, 5),
        ]
    )
    a, b = Place(file="a.py", line=1, function="f"), Place(file="b.py", line=9, function="g")
    rows = {(row.name, row.ns, row.total_ns, row.count, row.where) for row in host_time(view(trace))}
    assert rows == {
        ("b.py(9): g", 95, 100, 1, b),
        ("aten::to", 50, 50, 2, a),
        ("a.py(1): f", 50, 100, 1, a),
        ("aten::to", 5, 5, 1, b),
    }


def test_a_step_mark_is_no_function() -> None:
    mark = {**op("ProfilerStep#3", 0, 100), "cat": "annotation"}
    rows = {row.name: row.ns for row in host_time(view(make(host=[mark, op("aten::mm", 10, 20)])))}
    assert rows == {NOTHING: 80, "aten::mm": 20}


def test_events_are_cut_to_the_window() -> None:
    trace = make(host=[op("a", 0, 100), op("b", 40, 20)])
    rows = {row.name: (row.ns, row.total_ns) for row in host_time(view(trace, 50, 80))}
    assert rows == {"a": (20, 30), "b": (10, 10)}
    assert host_time(view(make(), 0, 10))[0].ns == 10


def test_methods_of_different_objects_are_one() -> None:
    host = [python(f"<built-in method item of Tensor object at 0x7f{i}a>", 10 * i, 5) for i in range(3)]
    rows = [(row.name, row.count, row.total_ns) for row in host_time(view(make(host=host), 0, 15))]
    assert rows == [("<built-in method item of Tensor object>", 2, 10), (NOTHING, 0, 5)]


def test_top() -> None:
    trace = make(host=[op("a", 0, 10), op("b", 10, 5), op("c", 15, 1)])
    assert [row.name for row in host_time(view(trace, 0, 100), top=2)] == [NOTHING, "a"]


def test_an_annotation_outlasts_the_frame_that_it_began_in() -> None:
    trace = make(
        host=[
            python("train.py(1): main", 0, 100),
            python("torch/profiler.py(2): __enter__", 10, 10),
            {**op("Optimizer.step#Adam", 15, 70), "cat": "annotation"},
            op("aten::add", 30, 10),
        ]
    )
    rows = {row.name: (row.ns, row.total_ns) for row in host_time(view(trace))}
    assert rows == {
        "Optimizer.step#Adam": (60, 70),
        "train.py(1): main": (25, 100),
        "aten::add": (10, 10),
        "torch/profiler.py(2): __enter__": (5, 10),
    }


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.sampled_from("abc")), max_size=14),
    st.integers(0, 30),
    st.integers(1, 60),
)
def test_against_every_instant(events: list[Any], start: int, length: int) -> None:
    events = sorted(events, key=lambda event: (event[0], -event[1]))
    own: dict[str, int] = {}
    total: dict[str, int] = {}
    for t in range(start, start + length):
        open_ = [name for s, d, name in events if s <= t < s + d]  # the last began last
        owner = open_[-1] if open_ else NOTHING
        own[owner] = own.get(owner, 0) + 1
        for name in set(open_):
            total[name] = total.get(name, 0) + 1
    rows = host_time(view(make(host=[op(name, s, d) for s, d, name in events]), start, start + length))
    assert sum(row.ns for row in rows) == length
    assert {row.name: row.ns for row in rows if row.ns} == own
    assert {row.name: row.total_ns for row in rows if row.total_ns and row.name != NOTHING} == total


def test_many_events_too() -> None:
    """Enough of them for the table to be made of arrays."""
    host = [op("outer", 10 * i, 9) for i in range(100)] + [op("inner", 10 * i + 2, 3) for i in range(100)]
    rows = {row.name: (row.ns, row.total_ns, row.count) for row in host_time(view(make(host=host), 0, 1000))}
    assert rows == {"outer": (600, 900, 100), "inner": (300, 300, 100), NOTHING: (100, 100, 0)}


def label(phase: str, start: int, dur: int) -> dict[str, Any]:
    return note(f"hotlap:{phase}", start, dur)


def test_model_time_is_that_of_the_models_phases_and_of_the_loss() -> None:
    host = [
        note("ProfilerStep#3", 0, 200),
        label("data", 0, 40),
        op("aten::select", 5, 30),
        op("aten::roll", 42, 6),  # the loop's own, before the forward
        label("forward", 50, 20),
        op("aten::addmm", 52, 10),
        op("aten::nll_loss", 72, 5),
        label("backward", 80, 30),
        op("aten::mm", 85, 20),
        label("optimizer", 120, 20),
        op("aten::add_", 121, 9),
        op("aten::mean", 150, 40),  # metrics
    ]
    rows = {row.name: row.ns for row in model_time(view(make(host=host), 0, 200))}
    ops = {name: ns for name, ns in rows.items() if name.startswith("aten::")}
    assert ops == {"aten::addmm": 10, "aten::nll_loss": 5, "aten::mm": 20, "aten::add_": 9}
    assert sum(rows.values()) == 20 + 5 + 30 + 20


def test_model_time_in_a_closure_and_without_labels() -> None:
    host = [
        label("optimizer", 0, 100),
        op("aten::zero_", 1, 4),
        label("forward", 10, 20),
        op("aten::mm", 12, 10),
        label("backward", 40, 20),
        op("aten::mm", 45, 10),
        op("aten::add_", 70, 10),
    ]
    rows = {row.name: row.ns for row in model_time(view(make(host=host), 0, 100))}
    assert (rows["aten::zero_"], rows["aten::mm"], rows["aten::add_"]) == (4, 20, 10)
    assert model_time(view(make(host=[op("aten::mm", 0, 10)]), 0, 10)) == ()
    assert model_time(view(make(), 0, 10)) == ()
