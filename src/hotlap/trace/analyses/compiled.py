"""Regions of torch.compile on the host, and the work launched in them.

Regions are host events that torch writes around compiled code: `Torch-Compiled Region: F/R` (F: the frame, R: how often
it was recompiled before), `TorchDynamo Cache Lookup` (guards are checked), `Pregraph bytecode` and `AOTDispatcher ...`
(what runs around the graph), `CompiledFunction` and `CompiledFunctionBackward` (the graphs, as autograd sees them) and
`## Call CompiledFxGraph HASH ##` (Inductor's code). They nest: `CompiledFunction` holds the call of its graph, so times
of different names do not add up. A region that begins in the window counts with all work that its own thread launches
in it. Work is summed, not its union. Triton kernels are those whose name
begins with `triton_`; the rest are library calls, ATen's own kernels, copies and memsets. A CUDA graph's work hangs on
one launch, so it is in whichever region holds that.
"""

import re
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import CompiledRegion

from ..view import View
from .annotations import launched
from .grouping import host_of

REGION: Final = re.compile(
    r"^(Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher |CompiledFunction|"
    r"## Call CompiledFxGraph )"
)
TRITON: Final = "triton_"


def compiled(view: View) -> tuple[CompiledRegion, ...]:
    """By name, most device time first, then most host time."""
    begun = host_of(view).named(REGION.match) & view.in_window(view.host("start"))
    rows = np.nonzero(begun)[0].astype(np.int64)
    regions = pl.DataFrame({"name": view.trace.host["name"].gather(rows), "host_ns": view.host("dur")[rows]})
    work = launched(view, rows, backward=False)
    triton = view.trace.device["name"].gather(work["row"]).str.starts_with(TRITON)
    work = work.with_columns(name=regions["name"].gather(work["range"]), triton=triton)
    took = pl.col("end") - pl.col("start")
    found = (
        regions.group_by("name")
        .agg(pl.len().alias("count"), pl.col("host_ns").sum())
        .join(
            work.group_by("name").agg(
                took.sum().alias("device_ns"),
                pl.len().alias("kernels"),
                took.filter("triton").sum().alias("triton_ns"),
                pl.col("triton").sum().alias("triton_kernels"),
            ),
            on="name",
            how="left",
        )
        .fill_null(0)
        .sort("device_ns", "host_ns", "name", descending=[True, True, False])
    )
    return tuple(CompiledRegion(**row) for row in found.iter_rows(named=True))
