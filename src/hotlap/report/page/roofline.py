"""Ops against what the device can do."""

from typing import Any, Final

from ...records.page import Page
from ...records.trace import OpRoofline, RankTrace
from ..console import place_text
from .text import base, shown_rank

TITLE: Final = "Roofline"
ROWS: Final = 8


def data(page: Page) -> dict[str, Any] | None:
    """Points of ops that compute, bars of ops that only move data, and the device's roofs."""
    rank = shown_rank(page)
    if rank is None or not rank.roofline:
        return None
    points = [_point(page, rank, row) for row in rank.roofline]
    return {
        "rows": points[:ROWS],
        "peaks": rank.peaks,
        "device": rank.device_name,
        "chart": {"points": points, "roofs": _roofs(rank), "memory_gbs": rank.peaks.memory_gbs if rank.peaks else None},
    }


def _point(page: Page, rank: RankTrace, row: OpRoofline) -> dict[str, Any]:
    """flops over bytes; TFLOP/s and GB/s as achieved (1 flop a ns is 0.001 TFLOP/s, 1 byte a ns is 1 GB/s)."""
    return {
        "op": row.op,
        "shape": row.shape,
        "dtype": row.dtype,
        "limit": row.limit,
        "of_peak": row.of_peak,
        "ms": row.ns / rank.window.count / 1e6,
        "intensity": row.flops / row.bytes if row.bytes and row.flops else None,
        "tflops": row.flops / row.ns / 1e3 if row.ns else 0.0,
        "gbs": row.bytes / row.ns if row.ns else 0.0,
        "why": row.why_not or ("tensor cores" if row.tensor_cores else ""),
        "at": place_text(row.where, base(page)),
    }


def _roofs(rank: RankTrace) -> list[tuple[str, float]]:
    """Peak TFLOP/s of the types that the ops have."""
    if rank.peaks is None:
        return []
    found: dict[str, float] = {}
    for dtype in sorted({row.dtype for row in rank.roofline if row.flops}):
        for name, cores in ((dtype, False), ("tf32" if dtype == "fp32" else dtype, True)):
            peak = rank.peaks.tflops(dtype, cores)
            if peak is not None:
                found.setdefault(name, peak)
    return list(found.items())
