"""Copies between host and device: what no kernel hides of them, and which are part of an operation.

* `exposed_ns`: the part of a copy, within the window, in which no kernel runs on its device; summed over copies, so
  that two that overlap count twice.
* `within`: `backward`, where autograd's engine is around the call that launched it; `op`, where another op is than
  those that copy (COPIES): what an op copies itself, hooks on the tensors that it saves, the forward of a
  `torch.autograd.Function`; else "", the script's own. Ranges that only wrap (`kernels.WRAPPERS`) are no such op, nor
  are ops that read a value (`.item()`), which launch copies without `aten::copy_`. A copy that was launched before the
  recording began is taken for one of those that go the same way and have most bytes.

Copies are summed by (way, within, where), those with most exposed time first; where: as of waits (`syncs`).
"""

import re
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import CopyTime

from ..intervals import covered, joined
from ..links import enclosing
from ..view import View
from .grouping import Ints, host_of, packed_places, unpacked
from .kernels import WRAPPERS

WAYS: Final = {"out": r"DtoH|Device -> (Pageable|Pinned|Host)", "in": r"HtoD|(Pageable|Pinned|Host) -> Device"}
COPY: Final = "aten::copy_"
COPIES: Final = re.compile(r"^aten::(copy_|_to_copy|to|cpu|cuda|clone|contiguous|pin_memory|_pin_memory)$")
ENGINE: Final = "autograd::engine::"


def copies(view: View) -> tuple[CopyTime, ...]:
    """Of the window, by way, what they are part of, and place."""
    out, in_ = (pl.col("name").str.contains(pattern) for pattern in WAYS.values())
    way = pl.when(out).then(pl.lit("out")).when(in_).then(pl.lit("in")).otherwise(pl.lit("")).alias("way")
    work = view.work.filter(pl.col("cat") == "memcpy").with_columns(way)
    work = work.filter(pl.col("way") != "")
    if not len(work):
        return ()
    rows = work["launch"].to_numpy().astype(np.int64)
    each = work.select("way", "bytes", "launch").with_columns(
        pl.Series("exposed", _exposed(view, work)),
        pl.Series("within", within(view, rows)),
        packed_places(view, rows).alias("place"),
    )
    known = each.filter(pl.col("launch") >= 0).group_by("way", "within", "place").agg(pl.col("bytes").sum())
    for one in WAYS:
        most = known.filter(pl.col("way") == one).sort("bytes", "within", "place").tail(1)
        if len(most):
            lost = (pl.col("way") == one) & (pl.col("launch") < 0)
            found = {name: pl.when(lost).then(pl.lit(most[name][0])).otherwise(name) for name in ("within", "place")}
            each = each.with_columns(**found)
    total = each.group_by("way", "within", "place").agg(pl.col("exposed", "bytes").sum(), pl.len().alias("count"))
    return tuple(
        CopyTime(
            way=row["way"],
            within=row["within"],
            count=row["count"],
            bytes=row["bytes"],
            exposed_ns=row["exposed"],
            where=unpacked(row["place"]),
        )
        for row in total.sort("exposed", "way", "within", "place", descending=[True, False, False, False]).iter_rows(
            named=True
        )
    )


def within(view: View, rows: Ints) -> list[str]:
    """What the calls at host rows that copy are part of: `backward`, `op` or ""."""
    host = host_of(view)
    copier = enclosing(rows, host.parent, host.named(COPY.__eq__))
    back = enclosing(rows, host.parent, host.named(lambda name: name.startswith(ENGINE)))
    others = host.op & ~host.named(lambda name: COPIES.match(name) or WRAPPERS.match(name))
    op = np.where(copier >= 0, enclosing(copier, host.parent, others), -1)
    return list(np.where(back >= 0, "backward", np.where(op >= 0, "op", "")))


def _exposed(view: View, work: pl.DataFrame) -> Ints:
    start, end, device = (work[name].to_numpy() for name in ("from", "to", "device"))
    found: Ints = end - start
    for one in view.devices:
        kernels = joined(view.busy(one, "compute"), view.busy(one, "communication"))
        found = found - np.where(device == one, covered(kernels, start, end), 0)
    return found
