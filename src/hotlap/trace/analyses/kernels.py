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
from .grouping import Ints, coded, host_of, places, remembered

UNATTRIBUTED: Final = "(unattributed)"
WRAPPERS: Final = re.compile(
    r"^(autograd::engine::|Torch-Compiled Region|CompiledFunction|Pregraph bytecode|AOTDispatcher |TorchDynamo )"
)
"""Ops that only hold others."""
MODULE: Final = "nn.Module: "

Keys = tuple[list[str], Ints]
"""Distinct keys, and for each piece of work the number of its own."""


def kernels(view: View, by: str = "name", top: int | None = None) -> tuple[KernelTime, ...]:
    """Device work by `name`, `op`, `module`, `shape` or `line`, most time first."""
    if not len(view.work):
        return ()
    labels, codes = KEYS[by](view)
    if not labels:
        return ()
    work = view.work.select((pl.col("to") - pl.col("from")).alias("ns")).with_columns(pl.Series("key", codes))
    total = int(work["ns"].sum())
    groups = work.group_by("key").agg(pl.col("ns").sum(), pl.len().alias("count"), pl.col("ns").max().alias("longest"))
    groups = groups.with_columns(pl.Series("label", [labels[key] for key in groups["key"].to_list()], pl.String))
    groups = groups.sort(["ns", "label"], descending=[True, False]).head(len(groups) if top is None else top)
    where = _where(view, work, groups["key"].to_list())
    return tuple(
        KernelTime(
            by=by,
            key=row["label"],
            ns=row["ns"],
            count=row["count"],
            share=row["ns"] / total if total else 0.0,
            longest_ns=row["longest"],
            where=where.get(row["key"]),
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


def _where(view: View, work: pl.DataFrame, keys: list[int]) -> dict[int, Place | None]:
    """For each key the place with most of its time."""
    distinct, codes = _anchored(view)
    if distinct == [None]:
        return {}
    spread = work.with_columns(pl.Series("place", codes)).filter(pl.col("key").is_in(keys))
    spread = spread.group_by("key", "place").agg(pl.col("ns").sum()).sort("ns", "place")
    return {key: distinct[place] for key, place, _ in spread.iter_rows()}


def _by_name(view: View) -> Keys:
    return coded(view.work["name"])


def _labelled(view: View, rows: Ints, nothing: str, prefix: str = "") -> Keys:
    """Names of host rows, one for each piece of work, without their prefix; -1: none, which is `nothing` where there
    is a launch."""
    host = host_of(view)
    distinct, at = np.unique(rows, return_inverse=True)
    used, code = np.unique(host.code[distinct[distinct >= 0]], return_inverse=True)
    codes = np.full(len(distinct), len(used), np.int64)
    codes[distinct >= 0] = code.reshape(-1)
    numbers = np.where((rows < 0) & (anchors(view) < 0), len(used) + 1, codes[at.reshape(-1)])
    return [*(host.names[name].removeprefix(prefix) for name in used.tolist()), nothing, UNATTRIBUTED], numbers


def _by_op(view: View) -> Keys:
    return _labelled(view, outer_ops(view, anchors(view)), "(no op)")


def outer_ops(view: View, rows: Ints) -> Ints:
    """For each row its outermost op that is not a wrapper, else its innermost op, else -1."""
    host = host_of(view)
    row, back = np.unique(rows, return_inverse=True)
    outer = topmost(row, host.parent, host.op & ~host.named(WRAPPERS.match))
    return np.where(outer >= 0, outer, enclosing(row, host.parent, host.op))[back]


def _by_module(view: View) -> Keys:
    host = host_of(view)
    wanted = host.named(lambda name: name.startswith(MODULE)) & host.python
    if not wanted.any():
        return [], np.empty(0, np.int64)
    return _labelled(view, host.nearest(anchors(view), wanted), "(no module)", MODULE)


def _by_shape(view: View) -> Keys:
    """One label for each distinct (op, row of shapes), not for each op."""
    host = host_of(view)
    rows, at = np.unique(view.work["op"].to_numpy().astype(np.int64), return_inverse=True)
    width = len(view.trace.shapes) + 1
    key = rows.copy()
    key[rows >= 0] = host.code[rows[rows >= 0]] * width + view.host("shapes")[rows[rows >= 0]] + 1
    found, back = np.unique(np.where(anchors(view) < 0, -2, key[at.reshape(-1)]), return_inverse=True)
    distinct: dict[str, int] = {}
    numbers = [distinct.setdefault(_shape_label(view, host.names, key, width), len(distinct)) for key in found.tolist()]
    return list(distinct), np.array(numbers, np.int64)[back.reshape(-1)]


def _shape_label(view: View, names: list[str], key: int, width: int) -> str:
    if key < 0:
        return UNATTRIBUTED if key == -2 else "(no op)"
    shape = key % width - 1
    sizes = shown(view.trace.shapes["dims"][shape]) if shape >= 0 else ""
    return f"{names[key // width]} {sizes}".rstrip()


def shown(dims: str) -> str:
    """Sizes of the tensors among an op's inputs, without the scalars: `[8192, 768] [768, 3072]`."""
    try:
        sizes = msgspec.json.decode(dims, type=list[object])
    except msgspec.DecodeError:
        return dims
    return " ".join(str(size) for size in sizes if size)


def _by_line(view: View) -> Keys:
    distinct, codes = _anchored(view)
    texts = [
        f"{place.file}:{place.line} {place.function or ''}".rstrip() if place else "(no line)" for place in distinct
    ]
    lost = anchors(view) < 0
    return [*texts, UNATTRIBUTED], np.where(lost, len(texts), codes)


KEYS: Final[dict[str, Callable[[View], Keys]]] = {
    "name": _by_name,
    "op": _by_op,
    "module": _by_module,
    "shape": _by_shape,
    "line": _by_line,
}
