"""`cumsum` in Triton: sums of chunks, then scans of chunks that begin with the sums before them. Two launches and three
passes over the input; one launch and two passes where there are rows enough. Deterministic; half precisions are added
in float32 and rounded once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
"""Elements that a program holds."""
INNER = 32
PROGRAMS = 1056
"""Eight for each of the 132 multiprocessors of an H100."""


def in_tiles(x: Tensor, reverse: bool = False) -> Tensor:
    """The scan over dimension 1 of (outer, length, inner), contiguous. reverse: from the end."""
    outer, length, inner = x.shape
    wide = min(INNER, triton.next_power_of_2(inner))
    high = min(TILE // wide, triton.next_power_of_2(length))
    tiles, columns = triton.cdiv(length, high), triton.cdiv(inner, wide)
    a_chunk = triton.cdiv(tiles, max(1, PROGRAMS // (outer * columns)))  # tiles in it
    chunks = triton.cdiv(tiles, a_chunk)
    double = x.dtype == torch.float64
    sums = torch.empty(outer, chunks, inner, device=x.device, dtype=x.dtype if double else torch.float32)
    out, grid = torch.empty_like(x), (outer * chunks, columns)
    shape = (length, inner, chunks, a_chunk)
    if chunks > 1:
        _sums[grid](x, sums, *shape, HIGH=high, WIDE=wide, REVERSE=reverse, DOUBLE=double, num_warps=8)
    _scans[grid](x, out, sums, *shape, HIGH=high, WIDE=wide, REVERSE=reverse, DOUBLE=double, num_warps=8)
    return out


@triton.jit
def _sums(
    x, sums, length, inner, chunks, a_chunk,
    HIGH: tl.constexpr, WIDE: tl.constexpr, REVERSE: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // chunks
    chunk = tl.program_id(0) % chunks
    i = tl.arange(0, WIDE) + (tl.program_id(1) * WIDE if WIDE > 1 else 0)  # 0: known to be aligned
    acc = tl.float64 if DOUBLE else tl.float32
    total = tl.zeros([WIDE], dtype=acc)
    for tile in range(a_chunk):
        n = (chunk * a_chunk + tile) * HIGH + tl.arange(0, HIGH)
        at = length - 1 - n if REVERSE else n
        mask = (n < length)[:, None] & (i < inner)[None, :]
        where = (row.to(tl.int64) * length + at)[:, None] * inner + i[None, :]
        # Tile by tile, as the scan does: neighbours of opposite signs cancel before they grow.
        total += tl.sum(tl.load(x + where, mask, other=0.0).to(acc), 0)
    tl.store(sums + tl.program_id(0) * inner + i, total, i < inner)


@triton.jit
def _scans(
    x, out, sums, length, inner, chunks, a_chunk,
    HIGH: tl.constexpr, WIDE: tl.constexpr, REVERSE: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // chunks
    chunk = tl.program_id(0) % chunks
    i = tl.arange(0, WIDE) + (tl.program_id(1) * WIDE if WIDE > 1 else 0)  # 0: known to be aligned
    acc = tl.float64 if DOUBLE else tl.float32
    before = tl.zeros([WIDE], dtype=acc)
    for first in range(0, chunk, HIGH):
        n = first + tl.arange(0, HIGH)
        mask = (n < chunk)[:, None] & (i < inner)[None, :]
        before += tl.sum(tl.load(sums + (row * chunks + n)[:, None] * inner + i[None, :], mask, other=0.0), 0)
    for tile in range(a_chunk):
        n = (chunk * a_chunk + tile) * HIGH + tl.arange(0, HIGH)
        at = length - 1 - n if REVERSE else n
        mask = (n < length)[:, None] & (i < inner)[None, :]
        where = (row.to(tl.int64) * length + at)[:, None] * inner + i[None, :]
        value = tl.load(x + where, mask, other=0.0).to(acc)
        tl.store(out + where, (tl.cumsum(value, 0) + before[None, :]).to(out.dtype.element_ty), mask)
        before += tl.sum(value, 0)
