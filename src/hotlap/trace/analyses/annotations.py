"""Named ranges (`record_function`, `Optimizer.step#...`, `ProfilerStep#`, hotlap's own) and the device work in them.

As `nsys stats --report nvtx_gpu_proj_sum`: a piece of work is in a range when its launch call starts in it, on the same
thread. One addition: autograd launches backward from threads of its own, while the thread that called `backward()`
waits. nsys leaves that work out of a range around `loss.backward()`; here ranges of the thread that trains have the
work that autograd's threads of the same process launch meanwhile.

Ranges that begin in the window count, with all of their work, also where that ends after the window. Names that differ
only by a number after `#` are one name: `ProfilerStep#`.

torch's own `gpu_user_annotation` rows are something else: CUPTI tags a launch with the *innermost* range of its thread
only, so that torch's projection of an outer range leaves out the work of inner ranges, and backward; and there is a
row for each stream.
"""

from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import Annotation

from ..intervals import union
from ..links import ranges
from ..tables import WORK
from ..view import View
from .grouping import Ints, host_of, union_ns

NUMBERED: Final = r"#\d+$"
ENGINE: Final = "autograd::engine::"
LABEL: Final = "hotlap:"
LABELLED: Final = ("data", "h2d", "forward", "backward", "optimizer")
ENGINE_THREAD: Final = "pt_autograd"
"""How torch names the engine's threads; nsys records that, and no ops."""


def annotations(view: View) -> tuple[Annotation, ...]:
    """By name, most projected time first, then most host time."""
    marked = (view.trace.host["cat"] == "annotation").to_numpy() & view.in_window(view.host("start"))
    rows = np.nonzero(marked)[0].astype(np.int64)
    names = view.trace.host["name"].gather(rows).str.replace(NUMBERED, "#")
    table = pl.DataFrame({"name": names, "host_ns": view.host("dur")[rows]})
    work = launched(view, rows).sort("start")
    work = work.with_columns(name=names.gather(work["range"]))
    projected = work.group_by("name", "range").agg((pl.col("end").max() - pl.col("start").min()).alias("projected_ns"))
    found = (
        table.group_by("name")
        .agg(pl.len().alias("instances"), pl.col("host_ns").sum())
        .join(projected.group_by("name").agg(pl.col("projected_ns").sum()), on="name", how="left")
        .join(work.group_by("name").agg(union_ns().alias("busy_ns"), pl.len().alias("kernels")), on="name", how="left")
        .fill_null(0)
        .sort("projected_ns", "host_ns", "name", descending=[True, True, False])
    )
    return tuple(Annotation(**row) for row in found.iter_rows(named=True))


def outside(view: View) -> int | None:
    """Device time, within the window, of work that was launched in none of the phases that hotlap labelled, as a mean
    over devices; None without labels."""
    rows = np.nonzero(view.trace.host["name"].is_in([f"{LABEL}{phase}" for phase in LABELLED]).to_numpy())[0]
    if not len(rows) or not view.devices:
        return None
    inside = launched(view, rows.astype(np.int64))["row"]
    work = view.work.filter((pl.col("launch") >= 0) & ~pl.col("row").is_in(inside.implode()))
    return sum(
        union(*(rest[at].to_numpy() for at in ("from", "to"))).total for _, rest in work.group_by("device")
    ) // len(view.devices)


def launched(view: View, rows: Ints, backward: bool = True) -> pl.DataFrame:
    """The work launched in each of `host` rows: range (its position), start, end and row (of `device`). backward:
    autograd's threads work for the thread that trains."""
    work = view.trace.device.with_row_index("row").filter(pl.col("cat").is_in(WORK) & (pl.col("launch") >= 0))
    launch = work["launch"].to_numpy()
    pid, tid, start = view.host("pid"), view.host("tid"), view.host("start")
    end = start + view.host("dur")
    engines = _autograd_threads(view) if backward else set()
    parts: list[tuple[Ints, Ints]] = []
    for thread in sorted(set(zip(pid[rows].tolist(), tid[rows].tolist(), strict=True))):
        mine = np.nonzero((pid[rows] == thread[0]) & (tid[rows] == thread[1]))[0].astype(np.int64)
        wanted = [thread, *(engines - {thread} if thread == view.main_thread else ())]
        tids = [number for process, number in wanted if process == thread[0]]
        theirs = np.nonzero((pid[launch] == thread[0]) & np.isin(tid[launch], tids))[0]
        parts.append(_within(mine, start[rows[mine]], end[rows[mine]], theirs, start[launch]))
    range_, piece = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else (rows, rows)
    found = work.select("start", (pl.col("start") + pl.col("dur")).alias("end"), "row")[piece]
    return found.with_columns(range=range_)


def _within(rows: Ints, starts: Ints, ends: Ints, pieces: Ints, at: Ints) -> tuple[Ints, Ints]:
    """Pairs of a row and a piece that was launched in it; at: when each piece was."""
    pieces = pieces[np.argsort(at[pieces], kind="stable")]
    first = np.searchsorted(at[pieces], starts, "left")
    count = np.maximum(np.searchsorted(at[pieces], ends, "left") - first, 0)
    return np.repeat(rows, count), pieces[ranges(first, count)]


def _autograd_threads(view: View) -> set[tuple[int, int]]:
    host = host_of(view)
    engine = np.nonzero(host.named(lambda name: name.startswith(ENGINE)) & host.op)[0]
    named = view.trace.threads.filter(pl.col("thread").str.starts_with(ENGINE_THREAD)).select("pid", "tid")
    return {*zip(view.host("pid")[engine].tolist(), view.host("tid")[engine].tolist(), strict=True), *named.rows()}
