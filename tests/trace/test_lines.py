"""A step's ops as the user's lines called them, laid on a trace in which more happens."""

import numpy as np
import pytest

from hotlap.records.diagnosis import Place
from hotlap.records.profile import Lines
from hotlap.trace.analyses.grouping import places
from hotlap.trace.lines import places_of
from hotlap.trace.view import View

from .build import make, note, op, view


def lines(*ops: tuple[str, int], **more: object) -> Lines:
    return Lines(steps=1, ops=tuple((name, 0, line, "f") for name, line in ops), files=("t.py",), **more)  # type: ignore[arg-type]


def found(rows: list[dict[str, object]], said: Lines) -> dict[str, int | None]:
    trace = make([note("ProfilerStep#1", 0, 1000), *rows])
    names = trace.host["name"].to_list()
    return {names[row]: place.line for row, place in places_of(trace, said).items()}


def test_calls_inside_a_call_are_passed_over_and_those_around_it_get_its_line() -> None:
    rows = [
        op("aten::linear", 10, 50),
        op("aten::t", 12, 5),
        op("aten::transpose", 13, 2),
        op("aten::addmm", 20, 20),
        op("aten::empty", 22, 2),
        op("aten::relu", 70, 5),
    ]
    said = lines(("aten::t", 3), ("aten::addmm", 3), ("aten::relu", 4))
    assert found(rows, said) == {"aten::linear": 3, "aten::t": 3, "aten::addmm": 3, "aten::relu": 4}


def test_ops_of_the_backward_on_the_same_thread_are_not_taken_for_the_users() -> None:
    rows = [
        op("aten::mm", 10, 5),
        op("autograd::engine::evaluate_function: MmBackward0", 20, 50),
        op("aten::t", 30, 10),
        op("aten::add", 80, 5),
    ]
    assert found(rows, lines(("aten::mm", 1), ("aten::t", 9), ("aten::add", 2))) == {"aten::mm": 1, "aten::add": 2}


def test_a_call_that_the_trace_lacks_does_not_put_the_rest_out_of_step() -> None:
    rows = [op("aten::a", 10, 5), op("aten::c", 20, 5), op("aten::d", 30, 5)]
    said = lines(("aten::a", 1), ("aten::b", 2), ("aten::c", 3), ("aten::d", 4))
    assert found(rows, said) == {"aten::a": 1, "aten::c": 3, "aten::d": 4}


def test_of_two_calls_of_one_name_it_is_the_one_with_what_comes_next() -> None:
    """As where a recurrent layer makes other operations below autograd than the profiler records."""
    rows = [
        op("aten::a", 10, 5),
        op("aten::mul", 20, 5),
        op("aten::b", 30, 5),
        op("aten::mul", 40, 5),
        op("aten::mm", 50, 5),
    ]
    said = lines(("aten::a", 1), ("aten::b", 2), ("aten::mul", 3), ("aten::mm", 4))
    assert found(rows, said) == {"aten::a": 1, "aten::b": 2, "aten::mul": 3, "aten::mm": 4}


def test_an_op_that_was_not_called_takes_no_line_of_a_later_one() -> None:
    rows = [op("aten::late", 10, 5), op("aten::a", 20, 5)]
    far = [(f"aten::x{n}", 2) for n in range(20)]
    said = lines(("aten::a", 1), *far, ("aten::late", 9), *far)
    assert found(rows, said) == {"aten::a": 1}


@pytest.mark.parametrize(("listed", "recorded"), [(8, 2), (1, 9)])
def test_where_a_phase_begins_both_are_there_again(listed: int, recorded: int) -> None:
    """With 8 workers a step took over 8 batches, and most of the others 2: what followed got lines of other layers."""
    taken = [name for _ in range(recorded) for name in ("aten::empty", "aten::set_")]
    layers = ["aten::convolution", "aten::empty", "aten::relu", "aten::addmm", "aten::relu", "aten::last"]
    names = [*taken, *layers]
    rows = [op(name, 11 + 10 * at, 5) for at, name in enumerate(names)]
    forward = 10 + 10 * len(taken)
    labels = [note("hotlap:data", 10, forward - 10), note("hotlap:forward", forward, 500)]
    ops = [
        *[(name, 1) for _ in range(listed) for name in ("aten::empty", "aten::set_")],
        *zip(layers, range(2, 8), strict=True),
    ]
    said = lines(*ops, begins=(("data", 0), ("forward", 2 * listed)))
    trace = make([note("ProfilerStep#1", 0, 1000), *sorted([*labels, *rows], key=lambda row: row["start"])])
    got = [place.line for row, place in sorted(places_of(trace, said).items())]
    assert got[-len(layers) :] == [2, 3, 4, 5, 6, 7] and set(got[: -len(layers)]) == {1}


@pytest.mark.parametrize(("listed", "recorded"), [(9, 4), (4, 9), (5, 5)])
def test_after_a_loop_of_other_turns_lines_are_right_again(listed: int, recorded: int) -> None:
    """Sentences of another length: all that came after the recurrent layer had no line."""
    turn = [f"aten::{name}" for name in ("addmm", "split", "sigmoid", "tanh", "mul", "add", "cat")]
    after = [name for _ in range(12) for name in ("aten::item", "aten::select")]
    last = [f"aten::last{at}" for at in range(30)]
    names = [*turn * recorded, *after, *last]
    rows = [op(name, 11 + 10 * at, 5) for at, name in enumerate(names)]
    rows += [op("aten::fill_", 12 + 10 * at, 1) for at in range(len(names))]  # inside each
    rows = [note("hotlap:forward", 10, 2000), *sorted(rows, key=lambda row: row["start"])]
    listed_lines = [*[1] * len(turn) * listed, *[2] * len(after), *[3] * len(last)]
    said = lines(*zip([*turn * listed, *after, *last], listed_lines, strict=True), begins=(("forward", 0),))
    trace = make([note("ProfilerStep#1", 0, 3000), *rows])
    start = trace.host["start"].to_list()
    got = {(start[row] - 11) // 10: place.line for row, place in places_of(trace, said).items() if start[row] > 10}
    own = [*[1] * len(turn) * recorded, *[2] * len(after), *[3] * len(last)]
    told = [(line, got.get(at)) for at, line in enumerate(own)]
    assert all(right == line for right, line in told if line is not None) and told[-1] == (3, 3)
    assert sum(line is None for _, line in told) <= 2 * 12


def test_a_phase_that_only_one_of_them_has_puts_nothing_out_of_step() -> None:
    rows = [
        *(note("hotlap:data", 10, 5), op("aten::x", 11, 2)),
        *(note("hotlap:data", 20, 5), op("aten::x", 21, 2)),  # of an epoch that ends
        *(note("hotlap:forward", 30, 5), op("aten::a", 31, 2)),
        *(note("hotlap:backward", 40, 5), op("aten::b", 41, 2)),
    ]
    begins = (("data", 0), ("h2d", 1), ("forward", 2), ("backward", 3))
    said = lines(("aten::x", 1), ("aten::to", 2), ("aten::a", 3), ("aten::b", 4), begins=begins)
    assert found(rows, said) == {"aten::x": 1, "aten::a": 3, "aten::b": 4}


def test_what_the_list_ends_with_may_come_at_the_beginning_of_a_step() -> None:
    rows = [op("aten::item", 10, 9), op("aten::read", 12, 5), op("aten::a", 30, 5), op("aten::b", 40, 5)]
    said = lines(("aten::a", 1), ("aten::b", 2), *[(f"aten::x{n}", 3) for n in range(9)], ("aten::read", 9))
    assert found(rows, said) == {"aten::item": 9, "aten::read": 9, "aten::a": 1, "aten::b": 2}


def test_each_step_is_walked_from_the_beginning() -> None:
    rows = [note(f"ProfilerStep#{n}", n * 100, 100) for n in range(3)]
    rows += [op("aten::a", n * 100 + 10, 5) for n in range(3)] + [op("aten::a", n * 100 + 30, 5) for n in range(3)]
    trace = make(rows)
    places = places_of(trace, lines(("aten::a", 1), ("aten::a", 2)))
    starts = trace.host["start"].to_list()
    assert {starts[row]: place.line for row, place in places.items()} == {
        start: line for n in range(3) for start, line in ((n * 100 + 10, 1), (n * 100 + 30, 2))
    }


def test_phases_give_their_annotations_a_line_and_bad_indices_none() -> None:
    said = Lines(files=("t.py",), places={"data": (0, 7, "main"), "optimizer": (5, 8, "main")})
    trace = make([note("enumerate(DataLoader)#x.__next__", 0, 10), note("Optimizer.step#SGD.step", 20, 10)])
    assert [place.line for place in places_of(trace, said).values()] == [7]


def test_a_backward_op_has_the_line_of_its_forward() -> None:
    trace = make(
        [
            op("aten::mm", 10, 5, sequence=4),
            note("hotlap:backward", 20, 50),
            op("autograd::engine::evaluate_function: MmBackward0", 30, 30, sequence=4),
            op("aten::t", 40, 5),
        ]
    )
    said = Lines(files=("t.py",), ops=(("aten::mm", 0, 3, "f"),), places={"backward": (0, 9, "f")})
    seen = view(trace, steps=((0, 100),))
    seen = View(seen.trace, seen.window, places_of(trace, said))
    where, number = places(seen, np.arange(len(trace.host)))
    lines = [where[at].line if where[at] else None for at in number]  # type: ignore[union-attr]
    assert dict(zip(trace.host["name"].to_list(), lines, strict=True)) == {
        "aten::mm": 3,
        "hotlap:backward": 9,
        "autograd::engine::evaluate_function: MmBackward0": 3,
        "aten::t": 3,
    }


def test_an_op_without_a_backward_before_it_is_not_its_forward() -> None:
    """It has the number that the next op with one takes, and may lie further out."""
    there, here = Place(file="a.py", line=1), Place(file="a.py", line=2)
    trace = make(
        [
            op("aten::to", 5, 2, sequence=4),
            note("hotlap:forward", 9, 20),
            op("aten::linear", 10, 8, sequence=4),
            op("aten::addmm", 11, 5, sequence=4),
            op("aten::relu", 20, 5, sequence=5),
            op("autograd::engine::evaluate_function: AddmmBackward0", 30, 9, sequence=4, tid=2),
            op("aten::linear", 32, 2, sequence=4, tid=2),  # of a checkpoint, on the engine's thread
        ]
    )
    where, number = places(View(trace, view(trace).window, {0: there, 2: here}), np.array([5]))
    assert [where[at] for at in number] == [here]


def call(name: str, start: int, dur: int) -> dict[str, object]:
    return {"name": name, "cat": "runtime", "start": start, "dur": dur}


def test_calls_that_wait_and_are_no_ops_get_the_line_that_makes_them() -> None:
    rows = [
        call("cudaDeviceSynchronize", 10, 5),
        op("aten::item", 20, 10),
        call("cudaDeviceSynchronize", 21, 5),
        call("cudaDeviceSynchronize", 40, 5),
        call("cudaFree", 60, 2),
        call("cudaFree", 63, 2),
    ]
    said = lines(
        calls=(
            ("torch.cuda.synchronize", 0, 7, "f"),
            ("torch.cuda.synchronize", 0, 8, "f"),
            ("torch.cuda.empty_cache", 0, 9, "f"),
        )
    )
    trace = make([note("ProfilerStep#1", 0, 1000), *rows])
    starts = trace.host["start"].to_list()
    assert {starts[row]: place.line for row, place in places_of(trace, said).items()} == {10: 7, 40: 8, 60: 9, 63: 9}


def test_calls_of_two_lines_that_do_not_match_in_number_get_none() -> None:
    rows = [call("cudaDeviceSynchronize", 10, 5)]
    said = lines(calls=(("torch.cuda.synchronize", 0, 7, "f"), ("torch.cuda.synchronize", 0, 8, "f")))
    assert found(rows, said) == {}


def test_waits_that_the_list_lacks_get_the_lines_of_the_warnings() -> None:
    rows = [
        op("aten::a", 10, 5),
        op("aten::item", 20, 10),
        op("aten::_local_scalar_dense", 21, 8),
        call("cudaStreamSynchronize", 22, 5),
        op("aten::nonzero", 40, 10),
        call("cudaStreamSynchronize", 42, 5),
    ]
    warned = tuple(("called a synchronizing CUDA operation", 0, line, "f") for line in (7, 8))
    told = {"aten::a": 1, "aten::item": 7, "aten::_local_scalar_dense": 7, "aten::nonzero": 8}
    assert found(rows, lines(("aten::a", 1), syncs=warned)) == told
    assert found(rows, lines(("aten::a", 1), syncs=warned[:1])) == {"aten::a": 1}
    assert found(rows, lines(("aten::a", 1), ("aten::nonzero", 3), syncs=warned))["aten::nonzero"] == 3
