"""Where the host waits for the device, in the user's words, and what that costs the device.

A wait is one or more waiting calls (`gaps.waiting_calls`: stream, device and event synchronisation, synchronous copies,
asynchronous copies of pageable memory; `cudaStreamWaitEvent` is not one, as the host goes on) that begin in the window
within the same innermost op, such as the copy and the synchronisation of one `.item()`; a call outside of ops is a
wait of its own. Of each wait:

* `host_ns`: the time in its calls. `call`: the longest (of all that are summed). `op`: the outermost op around it below
  autograd's own rows. `where`: the user's line (`grouping.places`).
* `idle_ns`: device idle time that `gaps` books to its calls: while the device has nothing to do and the call has not
  returned, and after that as much of `launch` and `python` idle time, until the next wait, as the call took: the host
  would have been that much further ahead. Waits without a kernel launch between them share (see `gaps`): what follows
  is booked to the longest, so that its idle time can exceed its own wait. The sum over waits that begin in the window
  is the idle time of cause `sync` less that of waits that began before it.
* `cause`: by the ops, annotations and Python functions around the call; see `_RULES`, the first that fits, and
  `_printing`: waits of `print(tensor)` are one cause without an op, though several ops wait in it.

Waits are summed by (cause, op, where), those with most idle time first.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import Sync
from hotlap.trace.links import enclosing, outermost
from hotlap.trace.view import Ints, View

from .copies import within
from .gaps import pieces
from .grouping import host_of, outermost_op, packed_places, unpacked
from .waits import SYNC, waiting_calls

AUTOGRAD: Final = re.compile(r"^autograd::|Backward\d*$")
MAX_DEPTH: Final = 32
"""Enclosing events that are looked at for the cause."""

END_OF_PROFILE: Final = "end of the profile"
PRINT: Final = "`print(tensor)`"
BOOL: Final = "`bool(tensor)`, as in `if` or `assert`"
MASK: Final = "boolean mask"
ITEM: Final = "`.item()`"
PAGEABLE_IN: Final = "pageable host-to-device copy"
BY_OPTIMIZER: Final = "optimizer: step count or rate on the device"
WITHIN_AN_OP: Final = "a copy to the host within an operation"
ASKS_EACH: Final = 4
"""torch 2.13 asks 5 times for a scalar that is neither 0 nor infinite, more often for more values."""
_RULES: Final = tuple(
    (re.compile(pattern, re.M), cause)
    for pattern, cause in (
        (r"torch/profiler/profiler\.py\(\d+\): _?stop_trace$", END_OF_PROFILE),
        (r"^enumerate\(DataLoader\)", "inside the data loader"),
        (r"^(c10d::barrier|.*: barrier$)", "`barrier()`"),
        (r"^(c10d::|nccl:|gloo:)", "collective"),
        (r"clip_grad", "`clip_grad_norm_`"),
        (r"grad_scaler\.py", "`GradScaler`: reads found_inf"),
        (r"_tensor_str\.py", PRINT),
        (r"^aten::is_nonzero$", BOOL),
        (r"^aten::equal$", "`torch.equal`"),
        (r"^aten::nonzero(_numpy)?\n(.*\n)*aten::(index|index_put_|_index_put_impl_|masked_\w+)$", MASK),
        (r"^aten::masked_(select|scatter)", MASK),
        (r"^aten::(nonzero|where|argwhere)", "`nonzero`"),
        (r"^aten::(_?unique\w*)$", "`unique`"),
        (r"^aten::repeat_interleave$", "`repeat_interleave` with sizes on the device"),
        (
            r"^aten::(item|_local_scalar_dense)$(.*\n)*^Optimizer\.step#",
            BY_OPTIMIZER,
        ),
        (r"^aten::(item|_local_scalar_dense)$", ITEM),
        (r"^copy: pageable in$", PAGEABLE_IN),
        (r"^copy: pinned in$", "host-to-device copy that waits (no non_blocking)"),
        (r"^copy: out within an op$", WITHIN_AN_OP),
        (r"^copy: out$", "`.cpu()` or `.to('cpu')`"),
        (
            r"^cudaDeviceSynchronize$|^hipDeviceSynchronize$|torch/cuda/__init__\.py.*: synchronize$",
            "`torch.cuda.synchronize()`",
        ),
        (r"^(cuda|hip)EventSynchronize$", "`Event.synchronize()`"),
        (r"^(cuda|hip|cu)Memcpy", "synchronous copy"),
        (r"^(cuda|hip|cu)StreamSynchronize(\n(?!aten::).*)*$\Z", "`Stream.synchronize()`"),
    )
)
_OUT, _PAGEABLE_IN, _PINNED_IN = 1, 2, 3
_COPY_WORDS: Final = {0: "", _OUT: "\ncopy: out", _PAGEABLE_IN: "\ncopy: pageable in", _PINNED_IN: "\ncopy: pinned in"}


def syncs(view: View) -> tuple[Sync, ...]:
    """Waits of the window by (cause, op, where), dearest first."""
    rows = waiting_calls(view)
    if not len(rows):
        return ()
    rows = rows[view.in_window(view.host("start")[rows])]
    if not len(rows):
        return ()
    each = pl.DataFrame(
        {
            "wait": _waits(view, rows),
            "cause": _causes(view, rows),
            "call": view.trace.host["name"].gather(rows),
            "op": _ops(view, rows),
            "place": packed_places(view, rows),
            "host": view.host("dur")[rows],
            "idle": _idle(view, rows),
        }
    )
    keys = ["cause", "op", "place"]
    # calls of one wait take the words of the longest of them
    waits = each.sort("host", descending=True, maintain_order=True).group_by("wait", maintain_order=True)
    one = waits.agg(*(pl.col(key).first() for key in (*keys, "call")), pl.col("host").sum(), pl.col("idle").sum())
    total = (
        _printing(one)
        .sort("host", descending=True)
        .group_by(*keys)
        .agg(pl.col("call").first(), pl.len().alias("count"), pl.col("host").sum(), pl.col("idle").sum())
    )
    return tuple(
        Sync(
            cause=row["cause"],
            call=row["call"],
            op=row["op"],
            count=row["count"],
            host_ns=row["host"],
            idle_ns=row["idle"],
            where=unpacked(row["place"]),
        )
        for row in total.sort(["idle", "host", *keys], descending=[True, True, *[False] * 3]).iter_rows(named=True)
    )


def _printing(waits: pl.DataFrame) -> pl.DataFrame:
    """The waits, those of `print(tensor)` under one cause and op.

    Where the trace has no Python functions it is told by what `torch/_tensor_str.py` does to choose a format: at one
    line it selects the finite values by a mask, and then asks at least ASKED times whether something is true of them.
    """
    here = pl.col("place")
    masks, asks = ((pl.col("cause") == cause).sum().over(here) for cause in (MASK, BOOL))
    format_ = (pl.col("cause") == MASK) & (pl.col("op") == "aten::masked_select")
    prints = (
        (here != "")
        & format_.any().over(here)
        & (asks >= ASKS_EACH * masks)
        & pl.col("cause").is_in([MASK, BOOL, ITEM])
    )
    named = waits.with_columns(cause=pl.when(prints).then(pl.lit(PRINT)).otherwise("cause"))
    return named.with_columns(op=pl.when(pl.col("cause") == PRINT).then(pl.lit("")).otherwise("op"))


def _waits(view: View, rows: Ints) -> Ints:
    """The wait that each call belongs to: its innermost op, else itself."""
    host = host_of(view)
    ops = enclosing(rows, host.parent, host.op)
    return np.where(ops >= 0, ops, rows)


def _ops(view: View, rows: Ints) -> pl.Series:
    """Name of the outermost op around each call, autograd's own rows aside; "" where there is none."""
    host = host_of(view)
    top = outermost_op(view, rows)
    own = host.named(lambda name: name.startswith("autograd::"))[top]
    top[own] = outermost(rows[own], host.parent, host.op & ~host.named(AUTOGRAD.search))
    names = zip(host.name(top), host.op[top].tolist(), strict=True)
    return pl.Series([name if op else "" for name, op in names], dtype=pl.String)


def _idle(view: View, rows: Ints) -> Ints:
    """Idle time of all devices that is booked to each call."""
    idle = np.zeros(len(view.trace.host), np.int64)
    for device in view.devices:
        mine = pieces(view, device).filter((pl.col("cause") == SYNC) & (pl.col("row") >= 0))
        np.add.at(idle, mine["row"].to_numpy(), (mine["end"] - mine["start"]).to_numpy())
    return idle[rows]


# causes


def _causes(view: View, rows: Ints) -> list[str]:
    ways, last = _ways(view, rows).tolist(), _end_of_profile(view, rows)
    inside = (
        one == "op" and op.startswith("aten::") for one, op in zip(within(view, rows), _ops(view, rows), strict=True)
    )
    words = (
        _COPY_WORDS[way] + " within an op" * (way == _OUT and deep) for way, deep in zip(ways, inside, strict=True)
    )
    return [
        END_OF_PROFILE if end else cause_of("\n".join(_names_around(view, row)) + said)
        for row, said, end in zip(rows.tolist(), words, last, strict=True)
    ]


def _names_around(view: View, row: int) -> Iterator[str]:
    """The names of a call and of what encloses it, innermost first."""
    host = host_of(view)
    for _ in range(MAX_DEPTH):
        yield host.names[host.code[row]]
        row = int(host.parent[row])
        if row < 0:
            return


@lru_cache(10_000)
def cause_of(chain: str) -> str:
    """The cause in words. chain: names of the call and of what encloses it, innermost first, a line each."""
    for pattern, cause in _RULES:
        if pattern.search(chain):
            return cause
    names = chain.split("\n")
    return next((name for name in reversed(names) if name.startswith("aten::")), names[0])


def _ways(view: View, rows: Ints) -> Ints:
    """Which way the copies of each call, or of its op, go; 0 for none."""
    copies = view.trace.device.filter((pl.col("cat") == "memcpy") & (pl.col("launch") >= 0))
    name = pl.col("name")
    way = (
        copies.select(
            pl.when(name.str.contains(r"DtoH|Device -> (Pageable|Pinned|Host)"))
            .then(_OUT)
            .when(name.str.contains(r"Pageable.*->.*Device"))
            .then(_PAGEABLE_IN)
            .when(name.str.contains(r"HtoD"))
            .then(_PINNED_IN)
            .otherwise(0)
        )
        .to_series()
        .to_numpy()
    )
    of = np.zeros(len(view.trace.host), np.int64)
    for column in ("launch", "op"):
        at = copies[column].to_numpy()
        of[at[(at >= 0) & (way > 0)]] = way[(at >= 0) & (way > 0)]
    return np.where(of[rows] > 0, of[rows], of[_waits(view, rows)])


def _end_of_profile(view: View, rows: Ints) -> list[bool]:
    """Whether a call is the profiler's own last synchronisation: of the whole device, outside everything, and the last
    that a thread does in the trace."""
    host = view.trace.host
    alone = (view.host("parent")[rows] < 0) & host["name"].gather(rows).str.contains("DeviceSynchronize").to_numpy()
    if not alone.any():
        return [False] * len(rows)
    last = host.select("pid", "tid", pl.row_index("row")).group_by("pid", "tid").agg(pl.col("row").last())["row"]
    return list((alone & np.isin(rows, last)).tolist())
