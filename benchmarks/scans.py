"""Candidates for `torch.cumsum` of floats, for `slow_ops.py`: cuts long rows so that more of the device works.

The library's scan over the last dimension gives a row to one block, its scan over another dimension gives a column to
one thread (aten/src/ATen/native/cuda/ScanUtils.cuh), so few long rows leave most of a GPU idle. A tensor of one row
goes to CUB, which is fast. All forms here take (outer, length, inner), contiguous, and scan dimension 1.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

try:
    from scans_triton import in_tiles
except ImportError:  # no triton, as on macOS and in builds for the CPU
    in_tiles = None

Form = Callable[[Tensor], Tensor]
LIBRARY: Final = torch.cumsum
HALF: Final = (torch.float16, torch.bfloat16)
TAKEN: Final = (torch.float32, torch.float64, *HALF)
NARROW: Final = 32
"""Columns below which the library's scan over an outer dimension fills no warp: rows are laid out first."""
TILE: Final = 64
"""Width of the triangular matrix."""


def cumsum(
    input: Tensor, dim: int, *, form: Form, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """As `torch.cumsum`, by another form where the input is a strided, non-empty tensor of floats. Differentiable,
    also twice; what a form has no rule for (`out=`, integers, vmap, forward-mode AD) is left to the library."""
    if out is not None or not _takes(input, dim, dtype):
        return LIBRARY(input, dim, dtype=dtype, out=out)
    if torch.is_autocast_enabled(input.device.type):  # it may give float32 for a half precision
        dtype = LIBRARY(input.new_empty(0), 0, dtype=dtype).dtype
    x = input if dtype is None else input.to(dtype)
    dim %= x.ndim
    flat = x.contiguous().view(math.prod(x.shape[:dim]), x.shape[dim], -1)
    scanned: Tensor = _Cumsum.apply(flat, form, False)
    return scanned.view(x.shape)


def _takes(x: Tensor, dim: int, dtype: torch.dtype | None) -> bool:
    if type(x) not in (Tensor, torch.nn.Parameter) or x.layout is not torch.strided or x.dtype not in TAKEN:
        return False
    if not x.numel() or not -x.ndim <= dim < x.ndim or dtype not in (None, *TAKEN):
        return False
    below_functions = torch._C._functorch.maybe_current_level() is not None
    return not (below_functions or forward_ad._current_level >= 0 or torch.compiler.is_compiling())


class _Cumsum(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, form: Form, reverse: bool) -> Tensor:
        if not reverse:
            return form(x)
        if form is in_tiles:
            return in_tiles(x, reverse=True)
        return form(x.flip(1)).flip(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.form, ctx.reverse = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Cumsum.apply(grad.contiguous(), ctx.form, not ctx.reverse), None, None


def two_level(x: Tensor) -> Tensor:
    """Scans of chunks, a scan of their sums, and the sums added: deterministic. Half precisions are added in float32,
    rounded once."""
    outer, length, inner = x.shape
    if 1 < inner < NARROW:
        return _in_rows(x, two_level)
    chunk = _chunk(length)
    if length < 2 * chunk:
        return LIBRARY(x, 1) if inner > 1 else LIBRARY(x.squeeze(2), 1).unsqueeze(2)
    chunks = -(-length // chunk)
    # Without a last dimension of 1, so that the library sees the innermost one.
    local = _padded(x, chunks * chunk).view(outer, chunks, chunk, *((inner,) if inner > 1 else ()))
    local = LIBRARY(local, 2, dtype=_wide(x))
    return _added(local, LIBRARY(local[:, :, -1], 1), x)


def row_by_row(x: Tensor) -> Tensor:
    """One scan of CUB for each row. In floats it may add in another order each time."""
    outer, length, inner = x.shape
    if inner > 1:
        return _in_rows(x, row_by_row)
    out = torch.empty_like(x)
    for row, scanned in zip(x.view(outer, length), out.view(outer, length), strict=True):
        LIBRARY(row, 0, out=scanned)
    return out


def by_product(x: Tensor) -> Tensor:
    """Tiles of 64 times a triangular matrix of ones, on the tensor cores for half precisions (and with TF32). A
    non-finite value makes all of its tile NaN, also what lies before it: 0 * inf."""
    outer, length, inner = x.shape
    if inner > 1:
        return _in_rows(x, by_product)
    if length < 16 * TILE:
        return LIBRARY(x.squeeze(2), 1).unsqueeze(2)
    tiles = -(-length // TILE)
    padded = _padded(x, tiles * TILE).view(outer, tiles, TILE)
    local = padded @ torch.ones(TILE, TILE, dtype=x.dtype, device=x.device).triu()
    sums = padded.sum(2, dtype=_wide(x)) if x.dtype in HALF else local[:, :, -1]
    return _added(local, by_product(sums.reshape(outer, tiles, 1)).squeeze(2), x)


def by_product_tf32(x: Tensor) -> Tensor:
    """`by_product` with float32 rounded to TF32's 10 bits of mantissa before it is added."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return by_product(x)
    finally:
        torch.set_float32_matmul_precision(before)


def forms(x: Tensor) -> dict[str, Form]:
    """By name, those for such an input that this machine has. TF32 changes nothing for half precisions."""
    found: dict[str, Form] = {"two-level": two_level, "row by row": row_by_row, "product": by_product}
    if x.dtype not in HALF:
        found["product TF32"] = by_product_tf32
    if in_tiles is not None and x.is_cuda:
        found["triton"] = in_tiles
    return found


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in HALF else x.dtype


def _chunk(length: int) -> int:
    """A power of two near the root, so that both levels have about as many rows as elements."""
    return min(4096, max(512, 1 << (length.bit_length() // 2)))


def _padded(x: Tensor, length: int) -> Tensor:
    return x if x.shape[1] == length else F.pad(x, (0, 0, 0, length - x.shape[1]))


def _added(local: Tensor, ends: Tensor, x: Tensor) -> Tensor:
    """The sums up to each chunk's end, added to the chunks that follow. local: (outer, chunks, chunk[, inner])."""
    before = ends[:, :-1].unsqueeze(2)
    if local.dtype == x.dtype and before.dtype == x.dtype:
        local[:, 1:] += before
        out = local
    else:
        out = torch.empty(local.shape, dtype=x.dtype, device=x.device)
        out[:, 0] = local[:, 0]
        torch.add(local[:, 1:], before, out=out[:, 1:])
    return out.view(x.shape[0], -1, x.shape[2])[:, : x.shape[1]].contiguous()


def _in_rows(x: Tensor, form: Form) -> Tensor:
    """With the inner dimension moved out, and back: two copies."""
    outer, length, inner = x.shape
    rows = x.transpose(1, 2).reshape(outer * inner, length, 1)
    return form(rows).view(outer, inner, length).transpose(1, 2).contiguous()
