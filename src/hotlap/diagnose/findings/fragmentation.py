"""The allocator holds much more than is in use, in pieces."""

from hotlap.records.diagnosis import Finding
from hotlap.records.sizes import size_text

from ._base import Measured

MORE, LEAST_BYTES = 1.3, 2**29
"""Times what is in use at the peak, and bytes beyond it, that the allocator holds."""


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory; what it costs in time `late_mallocs` tells."""
    usage = measured.usage
    if usage is None or usage.source != "allocator":
        return None
    beyond = usage.reserved_bytes - usage.peak_bytes
    if beyond < LEAST_BYTES or usage.reserved_bytes < MORE * usage.peak_bytes:
        return None
    return Finding(
        id="fragmentation",
        bound="memory",
        share=0.0,
        title="the allocator holds more than the steps use",
        evidence=f"{size_text(usage.reserved_bytes)} held, {size_text(usage.peak_bytes)} used at the peak of the "
        f"steps; the largest free block is {size_text(usage.free_bytes)}",
        why="what earlier steps, an evaluation or other shapes needed lies in pieces that fit nothing now",
        instead="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; pad to a few lengths",
        levers=("allocator",),
    )
