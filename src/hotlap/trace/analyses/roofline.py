"""Ops against what the device could do: FLOPs and bytes from the shapes, over the time of the work.

Which op has the work: the outermost around the launch whose FLOPs are known (matrix products, convolutions, fused
attention), with everything launched in it; else the innermost op, where its bytes are known (elementwise, softmax,
norms, copies, Triton kernels). Work of other ops is not in the answer. Time is that of work which starts in the window,
summed.

FLOPs, a multiply and an add as two, as `torch.utils.flop_counter` counts them: a product m×k by k×n has 2mnk, bias and
elementwise arithmetic none. Two differences: in grouped convolutions the gradient of the weight counts its group only,
and causal attention only the pairs that are looked at.

Bytes: every operand and the result once, at their sizes: what a perfect cache could not avoid. An operand expanded
with stride 0 counts its own elements. Python scalars, 0-dim tensors and what attention keeps for backward count
nothing, nor do results of reductions. A Triton kernel's outputs are among its arguments; of a view into a larger tensor
it touches no more elements than it has iterations, the product of its last, whole arguments.

The least possible time is the larger of FLOPs over the peak for the dtype and bytes over memory bandwidth; `of_peak` is
that over the measured time, `limit` says which of the two it is. Calls whose least time is below `SMALL_NS` and that
reach less than half of it are limited by `launch`: a kernel cannot be shorter than a few microseconds.

Tensor cores are known from kernel names: cuBLAS and cuDNN name the instruction (`s16816`, `hmma`, `gmma`, `tensorop`)
or the types of a product (`xmma_gemm_f32f32_f32f32` is plain fp32, `tf32` in its place is not); `nvjet` and flash
attention always use them, `sgemm`, `simt`, `gemv` and `ffma` never.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import msgspec
import numpy as np
import polars as pl

from hotlap.records.diagnosis import Place
from hotlap.records.peaks import Peaks
from hotlap.records.trace import OpRoofline

from ..links import topmost
from ..view import WITH_HOST, View
from .grouping import Ints, host_of, places
from .kernels import shown

SMALL_NS: Final = 2_000
MOST_NAMES: Final = 16
TRITON: Final = "triton_"

TYPES: Final = {
    "float": ("fp32", 4),
    "double": ("fp64", 8),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "int": ("int32", 4),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
}
"""As the profiler names element types: our word, and bytes."""
FLOATS: Final = ("fp8", "fp16", "bf16", "fp32", "fp64", "complex64", "complex128")

Sizes = list[int]


@dataclass(frozen=True)
class Call:
    """An op's recorded inputs by position: sizes ([] for what is no tensor), element types, strides, values as text."""

    op: str
    dims: list[object]
    types: list[str]
    strides: list[object]
    inputs: list[str]

    def size(self, at: int) -> Sizes:
        """Of a tensor. Raises ValueError where there is none."""
        found = self.dims[at] if at < len(self.dims) else []
        if not isinstance(found, list) or not found or not all(isinstance(n, int) for n in found):
            raise ValueError(f"{self.op} has no tensor at {at}")
        return found

    def has(self, at: int) -> bool:
        """Whether there is a tensor."""
        return at < len(self.dims) and bool(self.dims[at])

    def width(self, at: int) -> int:
        """Bytes of an element."""
        return TYPES[self.types[at]][1]

    def ints(self, at: int, count: int) -> Sizes:
        """A list such as stride or padding; one number stands for all."""
        found = msgspec.json.decode(self.inputs[at] if at < len(self.inputs) else "", type=list[int])
        return found * count if len(found) == 1 else found

    def flag(self, at: int) -> bool:
        """A truth value."""
        return at < len(self.inputs) and self.inputs[at] == "True"

    def read(self, *at: int) -> int:
        """Bytes of tensors, where there are any: their own elements, not those that stride 0 repeats."""
        return sum(prod(self._own(i)) * self.width(i) for i in at if self.has(i))

    def _own(self, at: int) -> Sizes:
        size, strides = self.size(at), self.strides[at] if at < len(self.strides) else []
        if not isinstance(strides, list) or len(strides) != len(size):
            return size
        return [n for n, stride in zip(size, strides, strict=True) if stride != 0]

    @cached_property
    def tensors(self) -> list[int]:
        """Positions of tensors; lists of tensors are none."""
        return [i for i, size in enumerate(self.dims) if isinstance(size, list) and size and isinstance(size[0], int)]

    @property
    def dtype(self) -> str:
        """Of the largest tensor, the first of equals."""
        if not self.tensors:
            return ""
        largest = max(self.tensors, key=lambda at: prod(self.size(at)))
        return TYPES.get(self.types[largest], ("", 0))[0]


Work = tuple[int, int, Sizes]
"""FLOPs and bytes of one call, and the dimensions that decide whether tensor cores can be used."""


# what calls need


def _product(a: Sizes, b: Sizes) -> tuple[int, int, int, int]:
    """(batch, m, k, n) of a @ b. Raises ValueError where they do not fit."""
    if len(a) != len(b) or len(a) not in (2, 3) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        raise ValueError(f"{a} @ {b}")
    return prod(a[:-2]), a[-2], a[-1], b[-1]


def _matmul(left: int, bias: int | None = None) -> Callable[[Call], Work]:
    def needs(call: Call) -> Work:
        batch, m, k, n = _product(call.size(left), call.size(left + 1))
        width = 2 if call.dtype == "fp8" else call.width(left)  # of the result: products of fp8 are bf16 as a rule
        moved = call.read(left, left + 1) + (call.read(bias) if bias is not None else 0)
        return 2 * batch * m * k * n, moved + batch * m * n * width, [m, k, n]

    return needs


def _linear(call: Call) -> Work:
    *batch, k = call.size(0)
    n = call.size(1)[0]
    m = prod(batch)
    return 2 * m * k * n, call.read(0, 1, 2) + m * n * call.width(0), [m, k, n]


def _convolved(x: Sizes, w: Sizes, call: Call) -> Sizes:
    """Sizes of a convolution's result. From input 3: stride, padding, dilation, transposed, output padding, groups."""
    space = len(x) - 2
    stride, padding, dilation = (call.ints(at, space) for at in (3, 4, 5))
    extra, groups = call.ints(7, space), int(call.inputs[8])
    extent = [d * (k - 1) for d, k in zip(dilation, w[2:], strict=True)]
    sides = zip(x[2:], stride, padding, extent, extra, strict=True)
    if call.flag(6):
        return [x[0], w[1] * groups, *((n - 1) * s - 2 * p + r + e + 1 for n, s, p, r, e in sides)]
    return [x[0], w[0], *((n + 2 * p - r - 1) // s + 1 for n, s, p, r, _ in sides)]


def _convolution_flops(x: Sizes, w: Sizes, out: Sizes, transposed: bool) -> int:
    """w is (out, in over groups, *kernel), or (in, out over groups, *kernel) where transposed: each element of the
    larger side's channels meets the whole of w once for each place of the kernel."""
    return 2 * x[0] * prod((x if transposed else out)[2:]) * prod(w)


def _convolution(call: Call) -> Work:
    x, w = call.size(0), call.size(1)
    out = _convolved(x, w, call)
    flops = _convolution_flops(x, w, out, call.flag(6))
    return flops, call.read(0, 1, 2) + prod(out) * call.width(0), [w[0], w[1]]


def _convolution_backward(call: Call) -> Work:
    out, x, w = call.size(0), call.size(1), call.size(2)
    mask = re.findall("True|False", call.inputs[10])
    to_x, to_w = mask[0] == "True", mask[1] == "True"
    flops = (to_x + to_w) * _convolution_flops(x, w, out, call.flag(7))
    moved = call.read(0) + (call.read(2) + prod(x) * call.width(1) if to_x else 0)
    moved += call.read(1) + prod(w) * call.width(2) if to_w else 0
    return flops, moved, [w[0], w[1]]


def _pairs(queries: int, keys: int, causal: bool) -> int:
    """Pairs that attention looks at; causal: query i sees keys 0 to i."""
    seen = min(queries, keys)
    return seen * (seen + 1) // 2 + (queries - seen) * keys if causal else queries * keys


def _attention(causal: int, bias: int | None = None) -> Callable[[Call], Work]:
    """Scores and their product with the values. q, k, v: (batch, heads, length, channels)."""

    def needs(call: Call) -> Work:
        q, k, v = call.size(0), call.size(1), call.size(2)
        pairs = q[0] * q[1] * _pairs(q[2], k[2], call.flag(causal))
        moved = call.read(0, 1, 2, *([bias] if bias is not None else []))
        return 2 * pairs * (q[3] + v[3]), moved + prod([*q[:3], v[3]]) * call.width(0), [q[3], v[3]]

    return needs


def _attention_backward(causal: int, out: int) -> Callable[[Call], Work]:
    """Scores again, then the gradients of scores, v, q and k: five products. out: the forward's result."""

    def needs(call: Call) -> Work:
        q, k, v = call.size(1), call.size(2), call.size(3)
        pairs = q[0] * q[1] * _pairs(q[2], k[2], call.flag(causal))
        written = (prod(q) + prod(k) + prod(v)) * call.width(1)
        return 2 * pairs * (3 * q[3] + 2 * v[3]), call.read(0, 1, 2, 3, out) + written, [q[3], v[3]]

    return needs


MATRIX: Final[dict[str, Callable[[Call], Work]]] = {
    "aten::mm": _matmul(0),
    "aten::bmm": _matmul(0),
    "aten::_scaled_mm": _matmul(0, 4),
    "aten::addmm": _matmul(1, 0),
    "aten::_addmm_activation": _matmul(1, 0),
    "aten::baddbmm": _matmul(1, 0),
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention(4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(4, 5),
    "aten::_scaled_dot_product_efficient_attention": _attention(6, 3),
    "aten::_scaled_dot_product_cudnn_attention": _attention(6, 3),
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward(11, 4),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(7, 4),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward(11, 5),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward(14, 4),
}
"""What calls of these need, with all that they call."""

_UNARY = "abs ceil clamp clamp_max clamp_min clone cos erf exp expm1 floor gelu hardswish leaky_relu log log1p"
_UNARY += (
    " log_sigmoid mish neg reciprocal relu round rsqrt sigmoid sign silu sin softplus sqrt square tan tanh _to_copy"
)
_BINARY = "add addcdiv addcmul bitwise_and bitwise_or bitwise_xor div fmod lerp masked_fill maximum minimum mul pow"
_BINARY += " remainder rsub sub where gelu_backward hardswish_backward leaky_relu_backward sigmoid_backward"
_BINARY += " silu_backward softplus_backward tanh_backward threshold_backward native_dropout_backward"
_COMPARE = "eq ge gt isinf isnan le logical_and logical_not logical_or lt ne"
_ROWS = "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data native_layer_norm"
_ROWS += " native_layer_norm_backward native_batch_norm cudnn_batch_norm cudnn_batch_norm_backward"
_ROWS += " native_batch_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm"
_REDUCE = "all amax amin any argmax argmin linalg_vector_norm mean norm sum"
_WRITE = "fill_ zero_ normal_ uniform_ bernoulli_ exponential_ random_"


def _promoted(call: Call) -> int:
    """Bytes of an element of the result: the widest float among the tensors, else the widest of all."""
    kinds = [TYPES[call.types[at]] for at in call.tensors]
    floats = [kind for kind in kinds if kind[0] in FLOATS]
    return max(width for _, width in floats or kinds)


def _broadcast(call: Call) -> int:
    """Elements of the tensors' common size."""
    sizes = [call.size(at) for at in call.tensors]
    return prod(int(n) for n in np.broadcast_shapes(*(tuple(size) for size in sizes)))


_ARITY: Final = {"add": 3, "sub": 3, "mul": 2, "div": 2, "maximum": 2, "minimum": 2, "pow": 2}
"""Inputs of binary ops; a tensor after them is where `out=` wants the result."""


def _elementwise(call: Call) -> Work:
    op = call.op.removeprefix("aten::")
    own = _ARITY.get(op, 1 if op in _UNARY.split() and not op.startswith("clamp") else len(call.dims))
    return 0, call.read(*(at for at in call.tensors if at < own)) + _broadcast(call) * _promoted(call), []


def _compared(call: Call) -> Work:
    return 0, call.read(*call.tensors) + _broadcast(call), []


def _written(call: Call) -> Work:
    return 0, prod(call.size(0)) * call.width(0), []


def _copied(call: Call) -> Work:
    return 0, prod(call.size(0)) * call.width(0) + call.read(1), []


def _rowwise(call: Call) -> Work:
    """As large a result as the first operand, or in its place; what a norm keeps for backward is small."""
    return 0, call.read(*call.tensors) + prod(call.size(0)) * call.width(0), []


def _reduced(call: Call) -> Work:
    return 0, call.read(call.tensors[0]), []


def _arguments(call: Call) -> Work:
    """Of a Triton kernel: pointers first, then the lengths of its loops."""
    after = call.inputs[call.tensors[-1] + 1 :]
    turns = prod(int(text) for text in after if text.isdecimal()) if any(map(str.isdecimal, after)) else None
    sizes = ((call.read(at), call.width(at)) for at in call.tensors)
    return 0, sum(size if turns is None else min(size, turns * width) for size, width in sizes), []


DIRECT: Final[dict[str, Callable[[Call], Work]]] = {
    "aten::linear": _linear,
    "aten::copy_": _copied,
    "aten::addmm_": _matmul(1, 0),
    "aten::threshold_backward_": _rowwise,
    **{f"aten::{op}": _elementwise for op in (_UNARY + " " + _BINARY).split()},
    **{f"aten::{op}_": _rowwise for op in (_UNARY + " " + _BINARY).split()},
    **{f"aten::{op}": _compared for op in _COMPARE.split()},
    **{f"aten::{op}": _rowwise for op in _ROWS.split()},
    **{f"aten::{op}": _reduced for op in _REDUCE.split()},
    **{f"aten::{op}": _written for op in _WRITE.split()},
}
"""What calls of these need, where they launch the work themselves."""


def needs(call: Call) -> Work | None:
    """FLOPs, bytes and deciding dimensions of a call; None where the op or its shapes are not known."""
    formula = MATRIX.get(call.op) or DIRECT.get(call.op) or (_arguments if call.op.startswith(TRITON) else None)
    try:
        return formula(call) if formula is not None and call.tensors else None
    except (ValueError, IndexError, KeyError, TypeError):
        return None


# the analysis


def roofline(view: View, peaks: Peaks | None) -> tuple[OpRoofline, ...]:
    """By op, shape and dtype, most device time first, each with the place that has most of it."""
    with_host = (pl.col("kind") == "copy") & pl.col("name").str.contains(WITH_HOST)
    work = view.work.filter((pl.col("op") >= 0) & (pl.col("start") >= view.window.start_ns) & ~with_host)
    if not len(work) or not len(view.trace.shapes):
        return ()
    rows = claimed(view, work["op"].to_numpy().astype(np.int64))
    distinct, place = places(view, rows)
    work = work.select("name", "dur").with_columns(pl.Series("row", rows), pl.Series("place", place))
    groups = grouped(view, work, "place")
    merged: dict[tuple[str, str, str], list[tuple[dict[str, int], Call, Work]]] = {}
    for group in groups.iter_rows(named=True):
        call = call_of(view, group["op"], group["shapes"])
        need = needs(call) if call is not None else None
        if call is not None and need is not None:
            key = (call.op, shown(view.trace.shapes["dims"][group["shapes"]]), call.dtype)
            merged.setdefault(key, []).append((group, call, need))
    kept = sorted(merged.items(), key=lambda item: (-sum(group["ns"] for group, _, _ in item[1]), item[0]))
    kernels = dict(groups.select("row", "kernels").iter_rows())
    return tuple(
        msgspec.structs.replace(_record(key, parts, peaks, kernels), where=_dearest([g for g, _, _ in parts], distinct))
        for key, parts in kept
    )


def _dearest(groups: Sequence[dict[str, int]], distinct: Sequence[Place | None]) -> Place | None:
    """The place that most of their time is at, of those that are known."""
    took: Counter[Place] = Counter()
    for group in groups:
        if (place := distinct[group["place"]]) is not None:
            took[place] += group["ns"]
    return took.most_common(1)[0][0] if took else None


def claimed(view: View, rows: Ints) -> Ints:
    """For each op the outermost around it (itself included) of `MATRIX`, else itself if its needs can be known, else
    -1."""
    host = host_of(view)
    matrix = host.named(lambda name: name in MATRIX)
    direct = host.named(lambda name: name in DIRECT or name.startswith(TRITON))
    row, back = np.unique(rows, return_inverse=True)
    outer = topmost(row, host.parent, matrix)
    return np.where(outer >= 0, outer, np.where(np.append(direct, False)[row], row, -1))[back]


def grouped(view: View, work: pl.DataFrame, *more: str) -> pl.DataFrame:
    """By op, row of `shapes` and `more`: row (the first op), rows and count (of ops), op, shapes, ns, kernels
    (distinct names). work: name, dur and row (of the op), -1 and unknown shapes left out."""
    ops = view.trace.host.select("name", "shapes")[work["row"].to_numpy()]
    return (
        work.with_columns(ops["name"].alias("op"), ops["shapes"])
        .filter((pl.col("row") >= 0) & (pl.col("shapes") >= 0))
        .group_by("op", "shapes", *more)
        .agg(
            pl.col("row").min(),
            pl.col("dur").sum().alias("ns"),
            pl.col("row").unique().alias("rows"),
            pl.col("name").unique().sort().alias("kernels"),
        )
        .with_columns(pl.col("rows").list.len().alias("count"))
        .sort("row", *more)
    )


def call_of(view: View, op: str, shapes: int) -> Call | None:
    """The inputs of an op with a row of `shapes`; None where they cannot be read."""
    row = view.trace.shapes.row(shapes, named=True)
    try:
        return Call(
            op=op,
            dims=msgspec.json.decode(row["dims"] or "[]", type=list[object]),
            types=msgspec.json.decode(row["types"] or "[]", type=list[str]),
            strides=msgspec.json.decode(row["strides"] or "[]", type=list[object]),
            inputs=msgspec.json.decode(row["inputs"] or "[]", type=list[str]),
        )
    except msgspec.DecodeError:  # ValidationError is one
        return None


def _record(
    key: tuple[str, str, str],
    parts: Sequence[tuple[dict[str, int], Call, Work]],
    peaks: Peaks | None,
    kernels: dict[int, list[str]],
) -> OpRoofline:
    count, ns = sum(group["count"] for group, _, _ in parts), sum(group["ns"] for group, _, _ in parts)
    flops = sum(group["count"] * need[0] for group, _, need in parts)
    moved = sum(group["count"] * need[1] for group, _, need in parts)
    names = [name for group, _, _ in parts for name in kernels[group["row"]]]
    used = tensor_cores(names) if flops else None
    limit, of_peak = bound(peaks, key[2], flops, moved, ns, count, bool(used))
    return OpRoofline(
        op=key[0],
        shape=key[1],
        dtype=key[2],
        ns=ns,
        count=count,
        flops=flops,
        bytes=moved,
        limit=limit,
        of_peak=of_peak,
        tensor_cores=used,
        why_not=why_not(key[2], parts[0][2][2]) if used is False else "",
        kernels=tuple(dict.fromkeys(names))[:MOST_NAMES],
    )


def bound(
    peaks: Peaks | None, dtype: str, flops: int, moved: int, ns: int, count: int, used: bool
) -> tuple[str, float | None]:
    """(limit, share of the peak that limits)."""
    rate = peaks.tflops(dtype, used) if peaks is not None else None
    if peaks is None or not ns or (flops and rate is None):
        return "unknown", None
    computing = flops / (rate * 1e3) if rate else 0.0  # TFLOP/s are 1e3 FLOP a ns
    moving = moved / peaks.memory_gbs  # GB/s are bytes a ns
    least = max(computing, moving)
    if least < SMALL_NS * count and least < ns / 2:
        return "launch", least / ns
    return ("compute" if computing > moving else "bandwidth"), least / ns


USED: Final = re.compile(
    r"tensorop|hmma|gmma|dmma|nvjet|flash|fmha_\w*f16|tf32|[sih]16816|[si]16832|[sh]1688|[shd]884|xmma_\w*?(bf16bf16|f16f16|e4m3|e5m2)",
    re.I,
)
UNUSED: Final = re.compile(r"simt|sgemm|dgemm|gemv|gemmk1|ffma|xmma_\w*?f(32|64)f\1_f\1f\1|_scudnn_|dot_kernel", re.I)


def tensor_cores(kernels: Sequence[str]) -> bool | None:
    """Whether any of an op's kernels uses them; None where no name says."""
    if any(USED.search(name) for name in kernels):
        return True
    return False if any(UNUSED.search(name) for name in kernels) else None


def why_not(dtype: str, dims: Sizes) -> str:
    """Why a product of a dtype does not use tensor cores, as far as its sizes tell. dims: m, k, n, or channels."""
    if dtype == "fp32":
        return "fp32 without TF32"
    if dtype == "fp64":
        return "fp64"
    if dtype not in ("bf16", "fp16", "fp8"):
        return f"{dtype or 'unknown'} operands"
    if dims and min(dims) == 1:
        return "a matrix times a vector"
    multiple = 16 if dtype == "fp8" else 8
    odd = [str(n) for n in dims if n % multiple]
    if odd:
        return f"{' and '.join(odd)} {'is' if len(odd) == 1 else 'are'} not a multiple of {multiple}"
    return "tiny" if dims and min(dims) < 16 else "unknown"
