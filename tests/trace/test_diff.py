"""What changed: exact numbers on hand-made traces; swapping negates; tables sum to totals."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.records.trace import Change, TraceDiff
from hotlap.trace.analyses import totals
from hotlap.trace.diff import REST, changes, cut, diff
from hotlap.trace.view import View

from .build import call, kernel, make, op, python, view

MS = 1_000_000


def step_of(work: dict[str, tuple[int, int]], steps: int = 2, length: int = 10, **more: Any) -> View:
    """Steps of `length` ms; work: name to (how often, ms each) a step, one after another, launched by an op each."""
    host: list[dict[str, Any]] = []
    device: list[dict[str, Any]] = []
    for step in range(steps):
        start = at = step * length * MS
        host.append({"name": f"ProfilerStep#{step}", "cat": "annotation", "start": at, "dur": length * MS})
        for name, (count, each) in work.items():
            for _ in range(count):
                number = len(device) + 1
                host.append(op(f"aten::{name}", at + 1000, 20_000))
                host.append(call("cudaLaunchKernel", at + 2000, 10_000, number))
                device.append(kernel(name, at + 20_000, each * MS, number))
                at += each * MS
        host += more.get("host", lambda s: [])(start)
    edges = tuple((s * length * MS, (s + 1) * length * MS) for s in range(steps))
    return view(make(host, device), 0, steps * length * MS, edges)


def row(rows: tuple[Change, ...], name: str) -> Change:
    return next(one for one in rows if one.name == name)


def test_what_appeared_disappeared_and_changed() -> None:
    before = step_of({"mm": (2, 2), "gelu": (1, 1), "same": (1, 1)}, length=10)
    after = step_of({"mm": (1, 1), "fused": (1, 2), "same": (1, 1)}, steps=3, length=5)
    found = diff(before, after)
    assert (found.step.before_ms, found.step.after_ms, found.step.delta_ms) == (10.0, 5.0, -5.0)
    assert (found.work.before_ms, found.work.after_ms) == (6.0, 4.0)
    assert [(one.name, one.how, one.delta_ms, one.before_count, one.after_count) for one in found.kernels] == [
        ("mm", "changed", -3.0, 2.0, 1.0),
        ("fused", "appeared", 2.0, 0.0, 1.0),
        ("gelu", "disappeared", -1.0, 1.0, 0.0),
    ]
    assert row(found.ops, "aten::mm").delta_ms == -3.0
    assert {one.name: one.delta_ms for one in found.parts} == {"idle": -3.0, "compute": -2.0}
    launches = found.launches[0]
    assert (launches.name, launches.before_count, launches.after_count) == ("cudaLaunchKernel", 4.0, 3.0)
    assert row(found.host, "ProfilerStep").before_count == 1.0


def test_words() -> None:
    found = diff(step_of({"mm": (2, 2), "gelu": (1, 1)}), step_of({"mm": (1, 1), "fused": (1, 2)}, length=5))
    assert (
        found.said[0] == "the step went from 10.0 ms to 5.00 ms, 2.00 times faster; "
        "of it idle -3.00 ms, compute -2.00 ms"
    )
    assert found.said[1:4] == (
        "kernel: mm -3.00 ms (4.00 ms to 1.00 ms, 2 to 1 a step)",
        "kernel: fused +2.00 ms (appeared, 1 a step)",
        "kernel: gelu -1.00 ms (disappeared, 1 a step)",
    )
    assert found.said[4].startswith("on the host: Python outside of any op -4.98 ms")


def test_sums_come_in_order_so_that_they_are_the_same_each_time() -> None:
    names = [f"kernel {number}" for number in range(500)]
    trace = make([op("a", 0, 10)], [kernel(name, 10 * at, 10) for at, name in enumerate(names)])
    assert list(totals.kernels(view(trace, 0, 5000))) == names


def test_nothing_changed() -> None:
    one = step_of({"mm": (2, 2)})
    found = diff(one, one)
    assert found.said == ("the step is as long as before, 10.0 ms",)
    assert found.kernels == found.ops == found.syncs == found.host == found.parts == found.launches == ()


def test_synchronisations() -> None:
    def waiting(at: int) -> list[dict[str, Any]]:
        return [call("cudaStreamSynchronize", at + 9 * MS, MS // 2, -1), call("cudaMemcpyAsync", at + 8 * MS, 10, -1)]

    found = diff(step_of({"mm": (1, 1)}, host=waiting), step_of({"mm": (1, 1)}))
    assert found.syncs == (
        Change(name="cudaStreamSynchronize", before_ms=0.5, after_ms=0.0, before_count=1.0, how="disappeared"),
    )
    assert "synchronisation: cudaStreamSynchronize -0.50 ms (disappeared, 1 a step)" in found.said


def test_lines_that_moved_are_the_same_function() -> None:
    def of(name: str, ms: int) -> View:
        return step_of({"mm": (1, 1)}, host=lambda at: [python(name, at + 5 * MS, ms * MS)])

    found = diff(of("train.py(10): augment", 3), of("train.py(14): augment", 1))
    assert [(one.name, one.how) for one in found.host] == [
        ("ProfilerStep", "changed"),
        ("train.py: augment", "changed"),
    ]
    assert row(found.host, "train.py: augment").delta_ms == pytest.approx(-2.0)
    built_in = diff(
        of("<built-in method cat of type object at 0x7f00>", 1), of("<built-in method cat of type object at 0x55>", 1)
    )
    assert built_in.host == ()


def test_host_time_is_self_time() -> None:
    inner = step_of({}, host=lambda at: [op("outer", at, 5 * MS), op("inner", at + MS, 3 * MS)])
    found = diff(step_of({}), inner)
    assert {one.name: one.delta_ms for one in found.host} == {"ProfilerStep": -5.0, "inner": 3.0, "outer": 2.0}
    assert found.step.delta_ms == 0.0


def test_a_function_that_holds_the_steps_does_not_own_them() -> None:
    """A step's annotation begins in a frame that it outlasts, and lies in the table below that."""
    step = {"name": "ProfilerStep#0", "cat": "annotation", "start": 50, "dur": 900}
    frames = [python("gpt.py(1): main", 0, 1000), python("torch/profiler.py(2): step", 10, 90)]
    found = totals.host(view(make([*frames, step, op("aten::mm", 200, 300)])))
    assert {totals.unnumbered(name): ns for name, (ns, _) in found.items()} == {
        "gpt.py: main": 60,
        "torch/profiler.py: step": 40,
        "ProfilerStep": 600,
        "aten::mm": 300,
    }


def test_sets_of_ranks_are_means() -> None:
    found = diff([step_of({"mm": (1, 2)}), step_of({"mm": (1, 4)})], [step_of({"mm": (1, 4)})])
    assert found.kernels == (Change(name="mm", before_ms=3.0, after_ms=4.0, before_count=1.0, after_count=1.0),)
    assert len(found.before) == 2 and len(found.after) == 1


def test_a_trace_without_a_device_is_idle() -> None:
    found = diff(step_of({}), step_of({"mm": (1, 2)}))
    assert {one.name: one.delta_ms for one in found.parts} == {"idle": -2.0, "compute": 2.0}


def test_two_traces_of_a_cpu_have_no_idle_device() -> None:
    found = diff(step_of({}, length=10), step_of({}, length=8))
    assert found.parts == () and found.said[0] == "the step went from 10.0 ms to 8.00 ms, 1.25 times faster"


def test_a_cut_table_keeps_its_sum() -> None:
    rows = changes({}, {str(n): (float(n), 1.0) for n in range(1, 6)})
    kept = cut(rows, 2)
    assert [one.name for one in kept] == ["5", "4", REST]
    assert (kept[-1].delta_ms, kept[-1].after_count) == (6.0, 3.0)
    assert cut(rows, 5) == tuple(rows)


WORK = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=6)
TABLES = ("parts", "kernels", "ops", "syncs", "launches", "host")


def negated(one: TraceDiff) -> dict[str, list[tuple[str, float, float]]]:
    return {table: [(c.name, -c.delta_ms, c.before_ms) for c in getattr(one, table)] for table in TABLES}


def swapped(one: TraceDiff) -> dict[str, list[tuple[str, float, float]]]:
    return {table: [(c.name, c.delta_ms, c.after_ms) for c in getattr(one, table)] for table in TABLES}


@given(WORK, WORK, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=30)
def test_swapping_negates_and_tables_sum_to_totals(
    one: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]], steps: int, more: int, rows: int
) -> None:
    a, b = step_of(one, steps, 60), step_of(other, more, 50)
    there, back = diff(a, b, rows=rows), diff(b, a, rows=rows)
    assert there.step.delta_ms == -back.step.delta_ms
    assert negated(there) == swapped(back)
    assert (there.before, there.after) == (back.after, back.before)
    for table in (there.kernels, there.ops):
        assert sum(c.delta_ms for c in table) == pytest.approx(there.work.delta_ms, abs=1e-9)
    if one or other:  # else no device is known
        assert sum(c.delta_ms for c in there.parts) == pytest.approx(there.step.delta_ms, abs=1e-9)
    truth = sum(n * ms for n, ms in other.values()) - sum(n * ms for n, ms in one.values())
    assert there.work.delta_ms == pytest.approx(truth, abs=1e-9)
    sizes = [abs(c.delta_ms) for c in diff(a, b).kernels]
    assert sizes == sorted(sizes, reverse=True)


def test_json_is_plain() -> None:
    found = diff(step_of({"mm": (1, 2)}), step_of({"mm": (1, 3)}))
    assert msgspec.json.decode(msgspec.json.encode(found), type=TraceDiff) == found


def test_of_equal_changes_the_names_decide() -> None:
    """A set of names has another order in each process."""
    names = [f"kernel {number}" for number in range(50)]
    for before, after in (({}, dict.fromkeys(names, (1.0, 1.0))), (dict.fromkeys(names, (1.0, 1.0)), {})):
        assert [one.name for one in changes(before, after)] == sorted(names)
