"""How the host issues work: exact on small traces, and the queue against a count of every nanosecond."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.trace.analyses.launches import TINY_NS, launches

from .build import call, kernel, make, view


def test_latency_and_lead() -> None:
    trace = make(
        host=[
            call("cudaLaunchKernel", 0, 4, 1),
            call("cudaLaunchKernel", 10, 4, 2),
            call("cudaLaunchKernel", 20, 4, 3),
        ],
        device=[kernel("a", 6, 30, 1), kernel("b", 40, 10, 2), kernel("c", 60, 10, 3)],
    )
    found = launches(view(trace, 0, 100))
    assert (found.count, found.unlinked, found.host_ns) == (3, 0, 12)
    assert (found.latency_p50_ns, found.latency_p90_ns) == (30, 40)  # of 6, 30, 40
    assert found.ahead_p50_ns == 26  # of 2, 26, 36
    # queued or running: a from 4 to 36, b from 14 to 50, c from 24 to 70
    assert found.queue_depth_mean == pytest.approx((32 + 36 + 46) / 100)
    assert found.queue_depth_p50 == 1  # none for 34 ns, one for 30


def test_a_graph_launch_is_one_call_with_many_kernels() -> None:
    trace = make(
        host=[call("cudaGraphLaunch", 0, 10, 5), call("cudaLaunchKernel", 20, 5, 6)],
        device=[*(kernel("node", 12 + 10 * i, 8, 5) for i in range(4)), kernel("after", 60, 5, 6)],
    )
    found = launches(view(trace, 0, 100))
    assert (found.count, found.graph_launches, found.graph_kernels) == (2, 1, 4)
    assert (found.latency_p50_ns, found.latency_p90_ns) == (12, 40)
    assert found.queue_depth_mean == pytest.approx((10 + 20 + 30 + 40 + 40) / 100)


def test_unlinked_work_and_tiny_kernels() -> None:
    trace = make(
        host=[call("cudaLaunchKernel", 0, 4, 1), call("cudaMemcpyAsync", 5, 4, 2), call("cudaLaunchKernel", 300, 4, 3)],
        device=[
            kernel("tiny", 6, TINY_NS - 1, 1),
            kernel("copy", 10_000, 10, 2, cat="memcpy"),
            kernel("enough", 20_000, TINY_NS, 99),
            kernel("outside", 60_000, 10, 3),
        ],
    )
    found = launches(view(trace, 0, 50_000))
    assert (found.tiny, found.tiny_ns, found.tiny_below_ns) == (1, TINY_NS - 1, TINY_NS)
    assert (found.count, found.unlinked) == (3, 1)  # the third call begins in the window, its kernel does not


def test_calls_that_launch_nothing_do_not_count() -> None:
    trace = make(host=[call("cudaStreamIsCapturing", 0, 5, 8), call("cudaLaunchKernel", 9, 5, 9)], device=[])
    found = launches(view(trace, 0, 50))
    assert (found.count, found.host_ns, found.latency_p50_ns, found.queue_depth_mean) == (0, 0, 0, 0.0)


def test_nothing_at_all() -> None:
    found = launches(view(make(), 0, 0))
    assert (found.count, found.queue_depth_mean, found.queue_depth_p50) == (0, 0.0, 0.0)


work = st.tuples(st.integers(0, 60), st.integers(0, 10), st.integers(0, 70), st.integers(0, 20), st.booleans())


@settings(max_examples=100)
@given(st.lists(work, max_size=10), st.integers(0, 20), st.integers(1, 50))
def test_the_queue_equals_a_count_of_every_nanosecond(
    rows: list[tuple[int, int, int, int, bool]], start: int, span: int
) -> None:
    host = [call("cudaLaunchKernel", c, d, i + 1, tid=i + 1) for i, (c, d, _, _, _) in enumerate(rows)]
    device = [kernel("k", s, d, i + 1 if linked else -1) for i, (_, _, s, d, linked) in enumerate(rows)]
    found = launches(view(make(host, device), start, start + span))
    depth: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(span, np.int64)
    for c, called, s, d, linked in rows:
        begin = min(c + called, s) if linked else s
        depth[max(0, begin - start) : max(0, s + d - start)] += 1
    assert found.queue_depth_mean == pytest.approx(depth.mean())
    assert found.queue_depth_p50 == np.sort(depth)[(span + 1) // 2 - 1]
    assert found.unlinked == sum(not linked and start <= s < start + span for _, _, s, _, linked in rows)
    assert found.count == sum(linked and start <= c < start + span for c, _, _, _, linked in rows)
