"""Allocator events and driver calls."""

from pathlib import Path
from typing import Any

import pytest

from hotlap.records.trace import Window
from hotlap.trace.analyses.memory import memory
from hotlap.trace.read import read
from hotlap.trace.view import View

from .build import call, kernel, make, op, view

CUDA = 1


def change(time: int, size: int, allocated: int, reserved: int, device: int = 0, kind: int = CUDA) -> dict[str, Any]:
    return {
        "time": time,
        "address": 64,
        "bytes": size,
        "device_type": kind,
        "device": device,
        "allocated": allocated,
        "reserved": reserved,
    }


def test_peaks_and_allocations_in_the_window() -> None:
    trace = make(
        memory=[
            change(0, 900, 900, 2000),
            change(5, -500, 400, 1000),
            change(10, 100, 500, 1000),
            change(20, 50, 550, 1200),
            change(30, -100, 450, 1200),
            change(100, 9999, 10449, 20000),
        ]
    )
    (use,) = memory(view(trace, 10, 100))
    assert (use.device, use.peak_allocated_bytes, use.peak_reserved_bytes) == (0, 550, 1200)
    assert (use.allocations, use.allocated_bytes) == (2, 150)
    assert (use.driver_allocations, use.driver_ns) == (0, 0)


def test_what_was_held_at_the_start_counts() -> None:
    (use,) = memory(view(make(memory=[change(0, 900, 900, 2000), change(50, -500, 400, 2000)]), 10, 100))
    assert (use.peak_allocated_bytes, use.allocations) == (900, 0)


def test_devices_are_apart_and_the_host_is_minus_one() -> None:
    trace = make(memory=[change(1, 8, 8, 16), change(2, 4, 4, 32, device=1), change(3, 2, 2, 0, device=-1, kind=0)])
    assert [(use.device, use.peak_allocated_bytes) for use in memory(view(trace, 0, 10))] == [(-1, 2), (0, 8), (1, 4)]


@pytest.mark.parametrize(
    "name", ["cudaMalloc", "cudaFree", "cudaHostAlloc", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemAlloc_v2"]
)
def test_driver_calls(name: str) -> None:
    host = [call(name, 10, 30, -1), call(name, 50, 5, -1, tid=2), call(name, 500, 5, -1)]
    (use,) = memory(view(make(host=host, device=[kernel("k", 60, 5, device=3)]), 0, 100))
    assert (use.device, use.driver_allocations, use.driver_ns) == (3, 2, 35)
    assert use.peak_allocated_bytes is None and use.peak_reserved_bytes is None


@pytest.mark.parametrize(
    "name", ["cudaMemcpyAsync", "cudaMemsetAsync", "cudaLaunchKernel", "cuMemcpyHtoDAsync_v2", "cudaFreeze"]
)
def test_other_calls_are_none(name: str) -> None:
    assert memory(view(make(host=[call(name, 10, 30, -1)]))) == ()


def test_the_window_is_the_hosts() -> None:
    """The host runs ahead: what it did for these steps is earlier than what the device did."""
    seen = view(make(host=[call("cudaMalloc", 15, 3, -1)], memory=[change(20, 100, 100, 1000)]), 50, 90)
    assert memory(seen)[0].driver_allocations == memory(seen)[0].allocations == 0
    ahead = View(seen.trace, seen.window, None, Window(start_ns=10, end_ns=40, found_by="ProfilerStep"))
    assert [(use.driver_allocations, use.allocations) for use in memory(ahead)] == [(1, 1)]


def test_an_op_of_that_name_is_no_call() -> None:
    assert memory(view(make(host=[op("cudaMalloc", 10, 30)]))) == ()


def test_a_recorded_trace(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = torch.empty(1000, 250)  # 1 MB
        del kept
        torch.empty(2048)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = read(path)
    times = trace.memory["time"]
    (use,) = memory(view(trace, int(times.min()), int(times.max()) + 1))  # type: ignore[arg-type]
    assert use.device == -1
    assert use.allocations == 2
    assert use.allocated_bytes == 1_000_000 + 8192
    assert use.peak_allocated_bytes is not None and use.peak_allocated_bytes >= 1_000_000
