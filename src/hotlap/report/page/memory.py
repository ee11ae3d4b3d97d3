"""Memory: of the steps that `--memory` looked at, by category, module and line; over the run; over profiled steps."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from ...records.diagnosis import framed
from ...records.memory import Category, MemoryLine, MemorySeries, MemoryUsage
from ...records.page import Page
from ...records.telemetry import TelemetrySample
from ..console import place_text
from .text import base, shown_rank

TITLE: Final = "Memory"
LINES: Final = 30
TILES: Final = 12
"""Of a category."""
Series = dict[str, Any]


def data(page: Page) -> dict[str, Any] | None:
    """Curves of each kind that is known, and tables of the peak."""
    rank = shown_rank(page)
    curves = list(rank.memory_curves) if rank else []
    sampled = list(_sampled(page.telemetry))
    uses = list(rank.memory) if rank else []
    peak = page.facts.peak_memory_bytes if page.facts else None
    usage = page.diagnosis.memory if page.diagnosis else None
    series = list(_series(page.memory_series)) if page.memory_series else []
    others = (curves, sampled, usage, page.memory, series, any(use.driver_allocations for use in uses))
    if peak is None and not any(others):
        return None
    return {
        "uses": uses,
        "peak": peak,
        "usage": usage,
        "lines": [(one, *_places(one, base(page))) for one in usage.lines[:LINES]] if usage else (),
        "stays": [(one, place_text(framed(one.where), base(page))) for one in usage.stays[:LINES]] if usage else (),
        "note": page.memory_series.note if page.memory_series else "",
        "sampled": [(one["name"], max((y for y in one["y"] if y is not None), default=None)) for one in sampled],
        "chart": {
            "curves": curves,
            "sampled": sampled,
            "window": page.memory,
            "tiles": list(_tiles(usage, base(page))) if usage else [],
            "series": series,
        },
    }


def _places(line: MemoryLine, cwd: str) -> tuple[str, str]:
    return place_text(framed(line.where), cwd), place_text(framed(line.inside))


def _tiles(usage: MemoryUsage, cwd: str) -> Iterator[Series]:
    """Categories; in each its modules where these are known, else its lines."""
    for part in usage.parts:
        parts = list(islice(_of_category(usage, part.category, cwd), TILES))
        rest = part.bytes - sum(size for _, size in parts)
        yield {"name": part.category, "bytes": part.bytes, "parts": parts if rest >= 0 else []}


def _of_category(usage: MemoryUsage, category: Category, cwd: str) -> Iterable[tuple[str, int]]:
    modules = ((one.name, part.bytes) for one in usage.modules for part in one.parts if part.category == category)
    by_module = sorted(modules, key=lambda one: -one[1])
    lines = ((place_text(framed(one.where), cwd), one.bytes) for one in usage.lines if one.category == category)
    return by_module or lines


def _series(found: MemorySeries) -> Iterator[Series]:
    """Bytes at the ends of steps."""
    named = (
        ("device, allocated", found.allocated),
        ("device, reserved", found.reserved),
        ("host, resident", found.resident),
    )
    return ({"name": name, "x": found.steps, "y": values} for name, values in named if any(values))


def _sampled(samples: tuple[TelemetrySample, ...]) -> Iterator[Series]:
    """Bytes over seconds since the first sample."""
    if len(samples) < 2:
        return
    x = [sample.time - samples[0].time for sample in samples]
    if any(sample.rss_bytes for sample in samples):
        yield {"name": "host memory, resident", "x": x, "y": [sample.rss_bytes for sample in samples]}
    for index in sorted({gpu.index for sample in samples for gpu in sample.gpus}):
        y = [next((gpu.memory_bytes for gpu in sample.gpus if gpu.index == index), None) for sample in samples]
        if any(y):
            yield {"name": f"GPU {index}, in use by anyone", "x": x, "y": y}
