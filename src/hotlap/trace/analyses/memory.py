"""Memory of each device over the window, as the host has it.

With `profile_memory=True` the trace has an instant for each allocation and release by torch's allocator, with the
totals after it: peaks are the largest total in the window, or at its start. Without, peaks are None and allocations 0.

Driver allocations are calls of the CUDA runtime and driver that obtain, map or release memory, on any thread, that
begin in the window. In a steady state there are none: torch caches. `cudaMalloc` and `cudaFree` wait for the device.
The calls do not say their device: they stand with the first device that works in the window (one process mostly has
one). The host's memory is device -1.
"""

import re
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.timeline import MemoryCurve
from hotlap.records.trace import MemoryUse

from ..view import View
from .grouping import host_of

CALLS: Final = re.compile(
    r"^((cuda|hip)Malloc(Async|Pitch|3D|Managed|Host|Array|FromPoolAsync)?|(cuda|hip)Free(Async|Host|Array)?|"
    r"(cuda|hip)Host(Alloc|Free|Malloc|Register|Unregister)|cuMem(AllocAsync|Alloc|AllocPitch|AllocManaged|AllocHost|"
    r"HostAlloc|FreeAsync|Free|FreeHost|Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree|HostRegister|"
    r"HostUnregister))(_v\d+)?(_ptsz)?$"
)
CELLS: Final = 400
"""Of a curve."""
CPU: Final = 0
"""c10::DeviceType of the host's memory."""


def memory(view: View) -> tuple[MemoryUse, ...]:
    """One for each device with allocator events, and for that of the driver's calls."""
    start, end = view.on_host.window.start_ns, view.on_host.window.end_ns
    events = _until(view, end)
    inside = pl.col("time") >= start
    taken = inside & (pl.col("bytes") > 0)
    uses = events.group_by("device").agg(
        _peak("allocated", inside),
        _peak("reserved", inside),
        taken.sum().alias("count"),
        pl.col("bytes").filter(taken).sum(),
    )
    found = {row["device"]: row for row in uses.iter_rows(named=True)}
    calls = _driver(view, start, end)
    first = min(view.devices or [device for device in found if device >= 0], default=0)
    wanted = sorted({*found, *([first] if len(calls) else [])})
    return tuple(_use(device, found.get(device), calls if device == first else calls.clear()) for device in wanted)


def memory_curves(view: View) -> tuple[MemoryCurve, ...]:
    """The allocator's totals over the window, one curve for each device with events in it, in few points: of each cell
    of time the first, the highest, the lowest and the last, so that peaks stay where they are."""
    start, end = view.on_host.window.start_ns, view.on_host.window.end_ns
    events = _until(view, end).filter(pl.col("time") >= start)
    events = events.with_columns(((pl.col("time") - start) * CELLS // max(1, end - start)).alias("cell"))
    found = []
    for device in sorted(events["device"].unique().to_list()):
        mine = events.filter(pl.col("device") == device).with_row_index("row")
        row, total = pl.col("row"), pl.col("allocated")
        of_cell = (row.first(), row.last(), row.get(total.arg_max()), row.get(total.arg_min()))
        kept = mine.group_by("cell").agg(one.alias(str(at)) for at, one in enumerate(of_cell)).drop("cell")
        chosen = mine[np.unique(kept.to_numpy())]
        if (chosen["allocated"] >= 0).any():
            found.append(
                MemoryCurve(
                    device=device,
                    time=tuple((chosen["time"] - start).to_list()),
                    allocated=tuple(chosen["allocated"].to_list()),
                    reserved=tuple(chosen["reserved"].to_list()),
                )
            )
    return tuple(found)


def _until(view: View, end: int) -> pl.DataFrame:
    """Allocator events before a time; those of the host's memory have device -1."""
    device = pl.when(pl.col("device_type") == CPU).then(-1).otherwise(pl.col("device")).alias("device")
    return view.trace.memory.filter(pl.col("time") < end).with_columns(device)


def _peak(column: str, inside: pl.Expr) -> pl.Expr:
    """The largest total in the window, or the last before it."""
    return pl.max_horizontal(pl.col(column).filter(inside).max(), pl.col(column).filter(~inside).last()).alias(column)


def _driver(view: View, start: int, end: int) -> pl.DataFrame:
    host = view.trace.host.filter(pl.Series(host_of(view).named(CALLS.match)))
    at = pl.col("start").is_between(start, end, closed="left")
    return host.filter((pl.col("cat") == "runtime") & at)


def _use(device: int, row: dict[str, int] | None, calls: pl.DataFrame) -> MemoryUse:
    return MemoryUse(
        device=device,
        peak_allocated_bytes=_known(row["allocated"]) if row else None,
        peak_reserved_bytes=_known(row["reserved"]) if row else None,
        allocations=row["count"] if row else 0,
        allocated_bytes=row["bytes"] if row else 0,
        driver_allocations=len(calls),
        driver_ns=int(calls["dur"].sum()),
    )


def _known(total: int) -> int | None:
    return total if total >= 0 else None
