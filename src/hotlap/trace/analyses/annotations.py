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

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import Annotation

from ..links import ranges
from ..tables import WORK
from ..view import View
from .grouping import Ints, host_of, measures, sums

NUMBERED: Final = re.compile(r"#\d+$")
ENGINE: Final = "autograd::engine::"
ENGINE_THREAD: Final = "pt_autograd"
"""How torch names the engine's threads; nsys records that, and no ops."""


@dataclass(frozen=True)
class Launched:
    """Work by the range that launched it: parallel arrays of the range's position and the work's `device` row."""

    range: Ints
    start: Ints
    end: Ints
    row: Ints


def annotations(view: View) -> tuple[Annotation, ...]:
    """By name, most projected time first, then most host time."""
    host = view.trace.host
    starts = view.host("start")
    rows = np.nonzero((host["cat"] == "annotation").to_numpy() & view.in_window(starts))[0].astype(np.int64)
    if not len(rows):
        return ()
    names: dict[str, int] = {}
    texts = host_of(view).name(rows)
    number = np.array([names.setdefault(NUMBERED.sub("#", text), len(names)) for text in texts], np.int64)
    work = launched(view, rows)
    instances, length = np.bincount(number, minlength=len(names)), sums(number, view.host("dur")[rows], len(names))
    busy = measures(number[work.range], work.start, work.end, len(names))
    pieces = np.bincount(number[work.range], minlength=len(names))
    projected = sums(number, projections(work, len(rows)), len(names))
    found = [
        Annotation(
            name=name,
            instances=int(instances[at]),
            host_ns=int(length[at]),
            projected_ns=int(projected[at]),
            busy_ns=int(busy[at]),
            kernels=int(pieces[at]),
        )
        for name, at in names.items()
    ]
    return tuple(sorted(found, key=lambda row: (-row.projected_ns, -row.host_ns, row.name)))


def projections(work: Launched, count: int) -> Ints:
    """For each of `count` ranges the time from the first start to the last end of its work; 0 without work."""
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, work.range, work.start)
    np.maximum.at(last, work.range, work.end)
    return np.where(last >= first, np.subtract(last, first, where=last >= first, out=np.zeros(count, np.int64)), 0)


def launched(view: View, rows: Ints, backward: bool = True) -> Launched:
    """The work launched in each of `host` rows; backward: autograd's threads work for the thread that trains."""
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
    from_ = work["start"].to_numpy()[piece]
    row = work["row"].to_numpy().astype(np.int64)[piece]
    return Launched(range_, from_, from_ + work["dur"].to_numpy()[piece], row)


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
