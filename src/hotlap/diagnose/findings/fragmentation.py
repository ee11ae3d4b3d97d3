"""The allocator holds much more than is in use, in pieces."""

from hotlap.records.diagnosis import Finding
from hotlap.records.sizes import size_text

from ._base import Measured

MORE, LEAST_BYTES = 1.3, 2**29
"""Times what was in use at the peak of the run, and bytes beyond it, that the allocator holds."""


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory; what it costs in time `late_mallocs` tells."""
    usage = measured.usage
    if usage is None or usage.source != "allocator":
        return None
    peak = max(usage.peak_bytes, usage.run_peak_bytes or 0)
    if usage.reserved_bytes - peak < LEAST_BYTES or usage.reserved_bytes < MORE * peak:
        return None
    return Finding(
        id="fragmentation",
        bound="memory",
        share=0.0,
        title="the allocator holds more than was ever in use",
        evidence=f"{size_text(usage.reserved_bytes)} held, {size_text(peak)} used at the peak so far; the "
        f"largest free block is {size_text(usage.free_bytes)}",
        why="what other shapes needed lies in pieces that fit nothing now",
        instead="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; pad to a few lengths",
        levers=("allocator",),
    )
