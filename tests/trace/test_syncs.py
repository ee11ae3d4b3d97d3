"""Waits in the user's words, what they take and what they cost."""

from typing import Any

import pytest
from hypothesis import given, settings

from hotlap.records.diagnosis import Place
from hotlap.trace.analyses.gaps import gaps
from hotlap.trace.analyses.syncs import END_OF_PROFILE, cause_of, syncs

from .build import call, kernel, make, op, python, view
from .test_gaps import LOADER, annotation, launch, traces


def copy(name: str, start: int, dur: int, correlation: int) -> dict[str, Any]:
    return kernel(name, start, dur, correlation, cat="memcpy")


def item(start: int, dur: int, correlation: int) -> list[dict[str, Any]]:
    """`.item()`: the copy takes 5, the rest is the wait."""
    return [
        op("aten::item", start, dur),
        op("aten::_local_scalar_dense", start + 1, dur - 2),
        call("cudaMemcpyAsync", start + 2, 5, correlation),
        call("cudaStreamSynchronize", start + 8, dur - 10, correlation + 1),
    ]


def test_item_each_step() -> None:
    host = [
        python("train.py(20): main", 0, 1000),
        launch(0, 1),
        *item(20, 200, 2),  # to 220, its wait from 28 to 218
        launch(300, 4),
        *item(320, 100, 5),
        launch(500, 7),
    ]
    device = [
        kernel("a", 10, 190, 1),
        copy("Memcpy DtoH (Device -> Pinned)", 205, 5, 2),
        kernel("b", 310, 50, 4),
        copy("Memcpy DtoH (Device -> Pinned)", 365, 5, 5),
        kernel("c", 510, 10, 7),
    ]
    (found,) = syncs(view(make(host, device), 10, 520))
    assert (found.cause, found.call, found.op, found.count) == (
        "`.item()`",
        "cudaStreamSynchronize",
        "aten::item",
        2,
    )
    assert found.host_ns == 190 + 90
    # 210..218 in the first wait and 218..310 after it; 370..418 in the second, then 42 of what it took
    assert found.idle_ns == 8 + 92 + 48 + 42
    assert found.where == Place(file="train.py", line=20, function="main")


def test_copies_are_told_apart() -> None:
    def to(start: int, correlation: int, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        host = [
            op("aten::to", start, 40),
            op("aten::_to_copy", start + 1, 38),
            op("aten::copy_", start + 2, 36),
            call("cudaMemcpyAsync", start + 3, 8, correlation),
            call("cudaStreamSynchronize", start + 12, 20, correlation + 100),
        ]
        return host, copy(name, start + 10, 20, correlation)

    names = ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)")
    parts = [to(100 * i, i + 1, name) for i, name in enumerate(names)]
    trace = make([row for host, _ in parts for row in host], [row for _, row in parts])
    found = {s.cause: (s.op, s.count, s.host_ns) for s in syncs(view(trace))}
    assert found == {
        "pageable host-to-device copy": ("aten::to", 1, 28),
        "host-to-device copy that waits (no non_blocking)": ("aten::to", 1, 20),
        "`.cpu()` or `.to('cpu')`": ("aten::to", 1, 28),
    }


def test_an_asynchronous_pinned_copy_and_stream_events_are_no_waits() -> None:
    trace = make(
        [call("cudaMemcpyAsync", 0, 5, 1), call("cudaStreamWaitEvent", 6, 5, 2), call("cudaEventQuery", 12, 2, 3)],
        [copy("Memcpy HtoD (Pinned -> Device)", 5, 5, 1)],
    )
    assert syncs(view(trace)) == ()


def test_waits_outside_of_ops_stand_alone() -> None:
    trace = make(
        [
            call("cudaDeviceSynchronize", 0, 10, 1),
            call("cudaDeviceSynchronize", 20, 10, 2),
            call("cudaEventSynchronize", 40, 10, 3),
            call("cudaStreamSynchronize", 60, 10, 4),
            call("cudaMemcpy", 80, 10, 5),
            call("cudaDeviceSynchronize", 100, 10, 6),
        ]
    )
    found = {s.cause: (s.count, s.host_ns, s.op) for s in syncs(view(trace))}
    assert found == {
        "`torch.cuda.synchronize()`": (2, 20, ""),
        "`Event.synchronize()`": (1, 10, ""),
        "`Stream.synchronize()`": (1, 10, ""),
        "synchronous copy": (1, 10, ""),
        END_OF_PROFILE: (1, 10, ""),
    }


def test_only_waits_that_begin_in_the_window() -> None:
    trace = make([call("cudaEventSynchronize", 0, 10, 1), call("cudaEventSynchronize", 20, 10, 2), launch(40, 3)])
    (found,) = syncs(view(trace, 5, 50))
    assert (found.count, found.host_ns) == (1, 10)


def test_a_wait_in_backward_has_its_op_below_the_engine() -> None:
    trace = make(
        [
            annotation("ProfilerStep#1", 0, 300),
            op("autograd::engine::evaluate_function: IndexBackward0", 10, 90, tid=2),
            op("IndexBackward0", 12, 80, tid=2),
            op("aten::_index_put_impl_", 20, 60, tid=2),
            op("aten::nonzero", 25, 50, tid=2),
            call("cudaStreamSynchronize", 30, 40, 1, tid=2),
            launch(110, 2, tid=2),
        ],
        [kernel("a", 0, 50), kernel("b", 120, 5, 2)],
    )
    (found,) = syncs(view(trace, 0, 125))
    assert (found.cause, found.op, found.host_ns) == ("boolean mask", "aten::_index_put_impl_", 40)


def printing(masks: int, asks: int, items: int, apart: bool = False) -> set[tuple[str, str, int]]:
    """(cause, op, count) of waits as `print(tensor)` makes them, all at one line or each kind at its own."""
    rows: list[dict[str, Any]] = []
    kinds = [["aten::masked_select"]] * masks + [["aten::is_nonzero", "aten::item"]] * asks + [["aten::item"]] * items
    for at, ops in enumerate(kinds):
        line = 10 + apart * (len(ops) + (ops[0] == "aten::item"))
        rows.append(python(f"train.py({line}): main", 100 * at, 100))
        rows += [op(name, 100 * at + 2 + depth, 80 - 2 * depth) for depth, name in enumerate(ops)]
        rows.append(call("cudaStreamSynchronize", 100 * at + 20, 40, at))
    return {(s.cause, s.op, s.count) for s in syncs(view(make(rows)))}


def test_printing_a_tensor_is_told_by_how_it_chooses_a_format() -> None:
    assert printing(2, 10, 6) == {("`print(tensor)`", "", 18)}
    for masks, asks, items, apart in [(2, 7, 3, False), (0, 8, 2, False), (1, 5, 3, True)]:
        causes = {cause for cause, _, _ in printing(masks, asks, items, apart)}
        assert "`print(tensor)`" not in causes and "`.item()`" in causes


CHAINS = [
    (["cudaStreamSynchronize", "aten::_local_scalar_dense", "aten::item"], "`.item()`"),
    (
        ["cudaStreamSynchronize", "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"],
        "`bool(tensor)`, as in `if` or `assert`",
    ),
    (
        ["cudaStreamSynchronize", "aten::_local_scalar_dense", "aten::item", "Optimizer.step#AdamW.step"],
        "optimizer: step count or rate on the device",
    ),
    (["cudaMemcpyAsync", "aten::nonzero"], "`nonzero`"),
    (["cudaMemcpyAsync", "aten::nonzero", "aten::index"], "boolean mask"),
    (["cudaMemcpyAsync", "aten::nonzero", "aten::where"], "`nonzero`"),
    (["cudaStreamSynchronize", "aten::_unique2"], "`unique`"),
    (["cudaStreamSynchronize", "aten::unique_dim"], "`unique`"),
    (["cudaStreamSynchronize", "aten::_local_scalar_dense", "aten::item", "aten::equal"], "`torch.equal`"),
    (["cudaStreamSynchronize", "aten::repeat_interleave"], "`repeat_interleave` with sizes on the device"),
    (["cudaStreamSynchronize", "c10d::barrier"], "`barrier()`"),
    (["cudaStreamSynchronize", "c10d::allreduce_"], "collective"),
    (["cudaStreamSynchronize", "aten::copy_", LOADER], "inside the data loader"),
    (
        ["cudaStreamSynchronize", "aten::item", "torch/nn/utils/clip_grad.py(99): clip_grad_norm_"],
        "`clip_grad_norm_`",
    ),
    (
        ["cudaStreamSynchronize", "aten::item", "torch/_tensor_str.py(150): __init__", "a.py(1): f"],
        "`print(tensor)`",
    ),
    (
        ["cudaStreamSynchronize", "aten::item", "torch/amp/grad_scaler.py(300): _maybe_opt_step"],
        "`GradScaler`: reads found_inf",
    ),
    (
        ["cudaDeviceSynchronize", "torch/cuda/__init__.py(900): synchronize", "a.py(1): f"],
        "`torch.cuda.synchronize()`",
    ),
    (
        [
            "cudaDeviceSynchronize",
            "torch/cuda/__init__.py(9): synchronize",
            "torch/profiler/profiler.py(278): stop_trace",
        ],
        END_OF_PROFILE,
    ),
    (["hipStreamSynchronize", "a.py(1): f"], "`Stream.synchronize()`"),
    (["cudaMemcpyAsync", "aten::copy_", "aten::to", "copy: pageable in"], "pageable host-to-device copy"),
    (["cudaStreamSynchronize", "aten::histc", "aten::histogram"], "aten::histogram"),
    (["cudaStreamSynchronize", "my_op"], "`Stream.synchronize()`"),
]


@pytest.mark.parametrize(("chain", "cause"), CHAINS)
def test_the_cause_in_the_users_words(chain: list[str], cause: str) -> None:
    assert cause_of("\n".join(chain)) == cause


def test_nothing_to_wait_for() -> None:
    assert syncs(view(make(), 0, 10)) == ()
    assert syncs(view(make([launch(0, 1)], [kernel("a", 5, 5, 1)]))) == ()


@settings(max_examples=60)
@given(traces())
def test_idle_time_is_that_of_the_gaps(rows: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    of = view(make(*rows))  # all of it, so every wait begins in the window
    found = syncs(of)
    assert sum(s.idle_ns for s in found) == sum(g.idle_ns for g in gaps(of) if g.cause == "sync")
    waits = of.trace.host.filter(of.trace.host["name"].str.contains("Synchronize"))
    assert sum(s.host_ns for s in found) == waits["dur"].sum()
    assert sum(s.idle_ns for s in found) <= sum(s.host_ns for s in found)
