"""Memory over the run, as sampled, and over the profiled steps, as torch's allocator had it."""

from collections.abc import Iterator
from typing import Any, Final

from ...records.page import Page
from ...records.telemetry import TelemetrySample
from .text import shown_rank

TITLE: Final = "Memory"
Series = dict[str, Any]


def data(page: Page) -> dict[str, Any] | None:
    """Curves of each kind that is known."""
    rank = shown_rank(page)
    curves = list(rank.memory_curves) if rank else []
    sampled = list(_sampled(page.telemetry))
    uses = list(rank.memory) if rank else []
    peak = page.facts.peak_memory_bytes if page.facts else None
    if not curves and not sampled and not any(use.driver_allocations for use in uses) and peak is None:
        return None
    return {
        "uses": uses,
        "peak": peak,
        "sampled": [(one["name"], max((y for y in one["y"] if y is not None), default=None)) for one in sampled],
        "chart": {"curves": curves, "sampled": sampled},
    }


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
