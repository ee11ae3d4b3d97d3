"""Totals of torch's allocator over the window, in few points: of each cell of time the first, the highest, the lowest
and the last, so that peaks stay where they are."""

from typing import Final

import numpy as np
import polars as pl

from hotlap.records.timeline import MemoryCurve

from ..view import View
from .memory import CPU

CELLS: Final = 400


def memory_curves(view: View) -> tuple[MemoryCurve, ...]:
    """One for each device with allocator events in the window; none where the profiler did not record memory."""
    start, end = view.on_host.window.start_ns, view.on_host.window.end_ns
    events = view.trace.memory.filter(pl.col("time").is_between(start, end, closed="left")).with_columns(
        pl.when(pl.col("device_type") == CPU).then(-1).otherwise(pl.col("device")).alias("device"),
        ((pl.col("time") - start) * CELLS // max(1, end - start)).alias("cell"),
    )
    found = []
    for device in sorted(events["device"].unique().to_list()):
        mine = events.filter(pl.col("device") == device).with_row_index("row")
        total = pl.col("allocated")
        kept = mine.group_by("cell").agg(
            pl.col("row").first().alias("first"),
            pl.col("row").last().alias("last"),
            pl.col("row").get(total.arg_max()).alias("high"),
            pl.col("row").get(total.arg_min()).alias("low"),
        )
        rows = np.unique(np.concatenate([kept[name].to_numpy() for name in ("first", "last", "high", "low")]))
        chosen = mine[rows]
        if (chosen["allocated"] < 0).all():
            continue
        found.append(
            MemoryCurve(
                device=device,
                time=tuple((chosen["time"] - start).to_list()),
                allocated=tuple(chosen["allocated"].to_list()),
                reserved=tuple(chosen["reserved"].to_list()),
            )
        )
    return tuple(found)
