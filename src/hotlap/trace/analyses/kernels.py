"""Device work by what it belongs to.

Time is each piece's length within the window, summed, so streams that overlap count more than once; shares are of the
sum over all work (kernels, copies, memsets) and sum to 1. `by` is one of

* `name`: the kernel's own name.
* `op`: the outermost op around the launch that says what is computed: in forward the op that Python called
  (`aten::linear`), in backward autograd's node (`AddmmBackward0`), in compiled code the Triton kernel or library op.
  Autograd's engine and torch.compile's own ranges only wrap; where nothing else is around (CUDA graphs), the innermost
  of them is the key.
* `module`: the innermost `nn.Module` on the profiler's Python stack; for backward that of the forward op with the same
  sequence number. Needs `with_stack=True`: () without.
* `shape`: the innermost op with the sizes of its inputs.
* `line`: the user's line (`grouping.places`).

`(unattributed)` is work with neither a launch nor an op in the trace: launched before the recording began, or lost by
the profiler. `(no op)`, `(no module)` and `(no line)` have a launch that is outside of any.
"""

import re
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import polars as pl

from hotlap.records.diagnosis import Place
from hotlap.records.trace import KernelTime

from ..links import enclosing, topmost
from ..view import View
from .grouping import Ints, host_of, places, remembered

UNATTRIBUTED: Final = "(unattributed)"
WRAPPERS: Final = re.compile(
    r"^(autograd::engine::|Torch-Compiled Region|CompiledFunction|Pregraph bytecode|AOTDispatcher |TorchDynamo )"
)
"""Ops that only hold others."""
MODULE: Final = "nn.Module: "


def kernels(view: View, by: str = "name", top: int | None = None) -> tuple[KernelTime, ...]:
    """Device work by `name`, `op`, `module`, `shape` or `line`, most time first."""
    keys = KEYS[by](view) if len(view.work) else None
    if keys is None:
        return ()
    distinct, codes = _anchored(view)
    work = pl.DataFrame({"key": keys, "ns": view.work["to"] - view.work["from"], "place": codes})
    total = int(work["ns"].sum())
    groups = work.group_by("key").agg(pl.col("ns").sum(), pl.len().alias("count"), pl.col("ns").max().alias("longest"))
    groups = groups.sort(["ns", "key"], descending=[True, False]).head(len(groups) if top is None else top)
    spread = work.filter(pl.col("key").is_in(groups["key"].implode())).group_by("key", "place").agg(pl.col("ns").sum())
    where = {key: distinct[place] for key, place, _ in spread.sort("ns", "place").iter_rows()}  # with most of its time
    return tuple(
        KernelTime(
            by=by,
            key=row["key"],
            ns=row["ns"],
            count=row["count"],
            share=row["ns"] / total if total else 0.0,
            longest_ns=row["longest"],
            where=where[row["key"]],
        )
        for row in groups.iter_rows(named=True)
    )


def anchors(view: View) -> Ints:
    """For each piece of work the host row it hangs on: its op, else its launch, else -1."""
    op, launch = view.work["op"].to_numpy().astype(np.int64), view.work["launch"].to_numpy().astype(np.int64)
    return np.where(op >= 0, op, launch)


@remembered
def _anchored(view: View) -> tuple[list[Place | None], Ints]:
    """`places` of all work."""
    return places(view, anchors(view))


def _labelled(view: View, rows: Ints, nothing: str, labels: pl.Series) -> pl.Series:
    """For each piece of work the label of its host row; -1: none, which is `nothing` where there is a launch."""
    none = pl.when(pl.Series(anchors(view) < 0)).then(pl.lit(UNATTRIBUTED)).otherwise(pl.lit(nothing))
    known = labels.gather(pl.Series(rows).replace(-1, None))
    return pl.select(pl.coalesce(known, none)).to_series()


def _by_name(view: View) -> pl.Series:
    return view.work["name"]


def _by_op(view: View) -> pl.Series:
    return _labelled(view, outer_ops(view, anchors(view)), "(no op)", view.trace.host["name"])


def outer_ops(view: View, rows: Ints) -> Ints:
    """For each row its outermost op that is not a wrapper, else its innermost op, else -1."""
    host = host_of(view)
    row, back = np.unique(rows, return_inverse=True)
    outer = topmost(row, host.parent, host.op & ~host.named(WRAPPERS.match))
    return np.where(outer >= 0, outer, enclosing(row, host.parent, host.op))[back]


def _by_module(view: View) -> pl.Series | None:
    host, names = host_of(view), view.trace.host["name"]
    wanted = host.named(lambda name: name.startswith(MODULE)) & host.python
    if not wanted.any():
        return None
    return _labelled(view, host.nearest(anchors(view), wanted), "(no module)", names.str.strip_prefix(MODULE))


def _by_shape(view: View) -> pl.Series:
    sizes = pl.Series([shown(dims) for dims in view.trace.shapes["dims"]], dtype=pl.String)
    known = sizes.gather(view.trace.host["shapes"].replace(-1, None)).fill_null("")
    labels = (view.trace.host["name"] + " " + known).str.strip_chars_end()
    return _labelled(view, view.work["op"].to_numpy().astype(np.int64), "(no op)", labels)


def shown(dims: str) -> str:
    """Sizes of the tensors among an op's inputs, without the scalars: `[8192, 768] [768, 3072]`."""
    try:
        sizes = msgspec.json.decode(dims, type=list[object])
    except msgspec.DecodeError:
        return dims
    return " ".join(str(size) for size in sizes if size)


def _by_line(view: View) -> pl.Series:
    distinct, codes = _anchored(view)
    texts = [
        f"{place.file}:{place.line} {place.function or ''}".rstrip() if place else "(no line)" for place in distinct
    ]
    return _labelled(view, np.where(anchors(view) < 0, -1, codes), "", pl.Series(texts, dtype=pl.String))


KEYS: Final[dict[str, Callable[[View], pl.Series | None]]] = {
    "name": _by_name,
    "op": _by_op,
    "module": _by_module,
    "shape": _by_shape,
    "line": _by_line,
}
