"""The partition of device time, against a count of every nanosecond."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.trace.analyses.breakdown import breakdown

from .build import kernel, make, view

KINDS = ("compute", "communication", "copy", "memset", "annotation", "sync")


def event(kind: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    names = {"communication": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "compute": "gemm"}
    category = "kernel" if kind in names else "memcpy" if kind == "copy" else kind
    return kernel(names.get(kind, kind), start, dur, cat=category, **more)


def test_overlapping_streams_count_once() -> None:
    trace = make(
        device=[
            event("compute", 10, 20, stream=7),  # 10..30
            event("communication", 20, 30, stream=20),  # 20..50: exposed from 30
            event("copy", 45, 15, stream=30),  # 45..60: exposed from 50
            event("memset", 70, 5, stream=7),
            event("annotation", 0, 100, stream=7),
        ]
    )
    (found,) = breakdown(view(trace, 0, 100))
    assert (found.compute_ns, found.exposed_communication_ns, found.exposed_copy_ns, found.idle_ns) == (20, 20, 15, 45)
    assert (found.communication_ns, found.copy_ns, found.kernel_ns) == (30, 20, 50)
    assert (found.device, found.span_ns, found.streams, found.kernels) == (0, 100, 3, 2)


def test_copies_within_the_device_are_told_apart_where_no_other_runs() -> None:
    trace = make(
        device=[
            event("compute", 0, 10),
            {**event("copy", 5, 15), "name": "Memcpy DtoD (Device -> Device)"},  # alone from 10 to 16
            {**event("copy", 16, 10, stream=8), "name": "Memcpy HtoD (Pinned -> Device)"},  # to 26
            event("memset", 24, 10),  # alone from 26 to 34
        ]
    )
    (found,) = breakdown(view(trace, 0, 100))
    assert (found.exposed_copy_ns, found.exposed_inside_ns) == (24, 14)


def test_the_window_cuts_work() -> None:
    trace = make(device=[event("compute", 0, 50), event("compute", 90, 50)])
    (found,) = breakdown(view(trace, 40, 100))
    assert (found.compute_ns, found.idle_ns, found.kernel_ns, found.kernels) == (20, 40, 20, 2)


def test_a_device_without_work_in_the_window_is_left_out() -> None:
    trace = make(device=[event("compute", 0, 5, device=0), event("compute", 20, 5, device=1)])
    assert [b.device for b in breakdown(view(trace, 10, 40))] == [1]
    assert breakdown(view(make(), 0, 10)) == ()


events = st.tuples(
    st.sampled_from(KINDS), st.integers(-5, 60), st.integers(0, 25), st.integers(0, 1), st.sampled_from([7, 8, 9])
)


@settings(max_examples=100)
@given(st.lists(events, max_size=14), st.integers(0, 20), st.integers(1, 40))
def test_equals_a_count_of_every_nanosecond(rows: list[tuple[str, int, int, int, int]], start: int, span: int) -> None:
    trace = make(device=[event(k, s, d, device=v, stream=m) for k, s, d, v, m in rows])
    for found in breakdown(view(trace, start, start + span)):
        runs: dict[str, np.ndarray[Any, np.dtype[np.bool_]]] = {k: np.zeros(span, bool) for k in KINDS}
        for k, s, d, v, _ in rows:
            if v == found.device:
                runs[k][max(0, s - start) : max(0, s + d - start)] = True
        compute, talk, copy = runs["compute"], runs["communication"], runs["copy"] | runs["memset"]
        assert found.compute_ns == compute.sum()
        assert found.exposed_communication_ns == (talk & ~compute).sum()
        assert found.exposed_copy_ns == (copy & ~compute & ~talk).sum()
        assert found.idle_ns == (~compute & ~talk & ~copy).sum()
        assert (found.communication_ns, found.copy_ns) == (talk.sum(), copy.sum())
        parts = found.compute_ns + found.exposed_communication_ns + found.exposed_copy_ns + found.idle_ns
        assert parts == found.span_ns == span


@pytest.mark.parametrize("name", ["ncclDevKernel_AllGather_RING", "rccl_main", "void nvshmem_put()"])
def test_kernels_that_talk_are_known_by_name(name: str) -> None:
    (found,) = breakdown(view(make(device=[kernel(name, 0, 10)]), 0, 10))
    assert (found.compute_ns, found.exposed_communication_ns) == (0, 10)
