"""MFU, model FLOPs utilisation: the FLOPs that a step's model needs, over the step's time and the device's peak.

    mfu = sum over dtypes (model FLOPs a step / peak for the dtype) / seconds a step

After appendix B of the PaLM paper (Chowdhery and others, 2022, arXiv:2204.02311), whose 6N + 12LHQT FLOPs a token are
the matrix products of a dense transformer, a multiply and an add as two: forward once, backward twice as much. Here
they are counted from the shapes of the ops that ran (`roofline.py`), so any model has them. As there,

* what a checkpoint computes again in the backward is not of the model: such ops have autograd's sequence number of a
  forward, and lie in a node of the backward. Inside of a compiled backward they can't be told from its own, and count;
* attention is two products forward and four backward, over all pairs: what a fused backward computes again does not
  count, and what a causal one leaves out does. So the same model has the same FLOPs however its attention is written.

Products inside `Optimizer.step` are the optimizer's, not the model's. The peak is `hotlap calibrate`'s for a device of
this name, else the data sheet's; fp32 is compared with TF32 where its kernels use tensor cores or do not say. Where
kernels whose names say that they multiply take more than `UNSEEN` of the time of all that do, and the trace does not
tell their sizes (CUDA graphs, Triton templates, other libraries), the FLOPs are not known, and no MFU is given.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from statistics import fmean
from typing import Final

import msgspec
import numpy as np
import polars as pl

from hotlap.records.durations import ms
from hotlap.records.kernel_names import short
from hotlap.records.peaks import Peaks
from hotlap.records.utilisation import Products, Utilisation

from ..links import enclosing
from ..view import View
from .grouping import Ints, host_of
from .roofline import MATRIX, UNUSED, USED, Call, call_of, claimed, grouped, needs, tensor_cores

UNSEEN: Final = 0.02
"""By so much MFU may be too low, which is no more than steps differ."""
MULTIPLIES: Final = re.compile(f"{USED.pattern}|{UNUSED.pattern}|triton_tem_|gemm|convolve|winograd|attention", re.I)
OWN_PRODUCT: Final = re.compile(r"(mm|Mm|Linear|Convolution|Attention)\w*Backward")
"""Nodes of the backward that multiply themselves: with `create_graph` their products have a sequence number too."""
ENGINE: Final = "autograd::engine::evaluate_function"
ATTENTION: Final = "aten::_scaled_dot_product_"
MODEL, AGAIN, OPTIMIZER = range(3)
"""Whose a product is: the model's, a checkpoint's that computes it again, the optimizer's."""


def model_flops(call: Call) -> int | None:
    """FLOPs of a call as the model needs them; None where they are not known."""
    need = needs(call)
    if need is None or not call.op.startswith(ATTENTION):
        return need[0] if need is not None else None
    backward = call.op.endswith("_backward")
    q, k, v = (call.size(at + backward) for at in range(3))
    return 2 * prod(q[:3]) * k[2] * (q[3] + v[3]) * (2 if backward else 1)


@dataclass
class _Counted:
    """FLOPs in the window: by whose, dtype and whether tensor cores can be said to be used; times in ns."""

    flops: dict[tuple[int, str, bool], int] = field(default_factory=dict)
    known_ns: int = 0
    unseen_ns: int = 0
    unseen: str = ""

    def of(self, whose: int) -> int:
        return sum(flops for key, flops in self.flops.items() if key[0] == whose)


def utilisation(view: View, peaks: Peaks | None, name: str, unprofiled_ms: float | None) -> Utilisation:
    """Of one rank. name: the device's; unprofiled_ms: the step without the profiler, where that is known."""
    count = view.window.count
    found = Utilisation(
        step_ms=unprofiled_ms or view.window.span_ns / count / 1e6, profiled=unprofiled_ms is None, device=name
    )
    if not view.devices:
        return msgspec.structs.replace(found, why="no GPU worked in these steps; FLOPs on a CPU are not counted")
    counted = _count(view)
    products = [
        Products(
            dtype=dtype,
            flops=flops / count,
            tensor_cores=used,
            tflops=peaks.tflops(dtype, used) if peaks is not None else None,
        )
        for (whose, dtype, used), flops in counted.flops.items()
        if whose == MODEL
    ]
    found = msgspec.structs.replace(
        found,
        flops=counted.of(MODEL) / count,
        recomputed=counted.of(AGAIN) / count,
        optimizer=counted.of(OPTIMIZER) / count,
        products=tuple(sorted(products, key=lambda one: -one.flops)),
        devices=len(view.devices),
        peaks=_origin(peaks),
    )
    why = _why_not(found, counted)
    return msgspec.structs.replace(found, why=why) if why else msgspec.structs.replace(found, mfu=_mfu(found))


def over_ranks(found: Sequence[Utilisation]) -> Utilisation | None:
    """Of a run: the first rank's, with the mean of the ranks' MFU where that of each is known."""
    if not found:
        return None
    known = [one.mfu for one in found if one.mfu is not None]
    if len(known) == len(found):
        return msgspec.structs.replace(found[0], mfu=fmean(known), ranks=len(found))
    return next(one for one in found if one.mfu is None)


def _mfu(found: Utilisation) -> float:
    least_s = sum(one.flops / (one.tflops * 1e12) for one in found.products if one.tflops)
    return least_s / found.devices / (found.step_ms / 1e3)


def _why_not(found: Utilisation, counted: _Counted) -> str:
    """Why there is no MFU, "" where there is one."""
    if counted.unseen_ns > UNSEEN * (counted.known_ns + counted.unseen_ns):
        took = ms(counted.unseen_ns / 1e6)
        return f"{took} in these steps went to matrix products of unknown size, mostly {short(counted.unseen)}"
    if not found.flops:
        return "no matrix product, convolution or attention was seen in these steps"
    if not found.peaks:
        return f"the peak of {found.device or 'this device'} is unknown; `hotlap calibrate` measures it"
    missing = [one.dtype for one in found.products if one.tflops is None and one.flops > UNSEEN * found.flops]
    return f"no peak of {found.device} is known for {', '.join(missing)}" if missing else ""


def _origin(peaks: Peaks | None) -> str:
    if peaks is None:
        return ""
    return f"data sheet of {peaks.name}" if peaks.source == "data sheet" else f"hotlap calibrate, {peaks.source}"


def _count(view: View) -> _Counted:
    """The products whose work starts in the window."""
    work = view.work.filter((pl.col("start") >= view.window.start_ns) & (pl.col("kind") == "compute"))
    rows = claimed(view, work["op"].to_numpy().astype(np.int64))
    work = work.select("name", "dur").with_columns(pl.Series("row", rows), pl.Series("whose", _whose(view, rows)))
    found, known = _Counted(), np.zeros(len(view.trace.host) + 1, np.bool_)  # the last is that of no op
    for group in grouped(view, work, "whose").iter_rows(named=True):
        call = call_of(view, group["op"], group["shapes"])
        flops = model_flops(call) if call is not None else None
        if call is not None and flops:
            key = group["whose"], call.dtype, tensor_cores(group["kernels"]) is not False
            found.flops[key] = found.flops.get(key, 0) + group["count"] * flops
            found.known_ns += group["ns"]
            known[group["rows"]] = True
    multiplies = [name for name in work["name"].unique() if MULTIPLIES.search(name)]
    unseen = work.filter(pl.Series(~known[rows]) & pl.col("name").is_in(multiplies))
    kernels = unseen.group_by("name").agg(pl.col("dur").sum()).sort("dur", "name", descending=[True, False])
    found.unseen_ns, found.unseen = int(unseen["dur"].sum()), kernels["name"][0] if len(kernels) else ""
    return found


def _whose(view: View, rows: Ints) -> Ints:
    """Of each op whose it is; the model's where there is none."""
    host = host_of(view)
    if not len(host.parent):
        return np.zeros(len(rows), np.int64)
    row = np.maximum(rows, 0)
    above = np.maximum(host.parent[row], 0)
    sequence, forward = view.host("sequence"), view.host("fwd_tid")
    node = enclosing(row.copy(), host.parent, host.named(lambda name: name.startswith(ENGINE)))
    update = enclosing(row.copy(), host.parent, host.named(lambda name: name.startswith("Optimizer.step#")))
    own = host.parent[np.nonzero(host.named(lambda name: name in MATRIX) & (sequence < 0))[0]]
    multiplies = host.named(OWN_PRODUCT.search) & ~np.isin(np.arange(len(host.parent)), own)
    again = (sequence[row] >= 0) & (forward[row] == 0) & (node >= 0) & ~multiplies[above]
    whose = np.where(again, AGAIN, np.where(update >= 0, OPTIMIZER, MODEL))
    return np.where(rows >= 0, whose, MODEL).astype(np.int64)
