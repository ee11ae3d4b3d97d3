"""Batches are copied to the device while it waits."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

LEAST = 0.02
SLOWEST_BYTES_MS, LATENCY_MS = 1e6, 0.05
"""What every PCIe link does, also from pageable memory, and what a copy takes at most however small it is."""
WAITS = "waits-in-copies"


def find(measured: Measured) -> Finding | None:
    """Share: the h2d phase on the device's clock. Where that is longer than such copies can take, it is a wait."""
    share = measured.share("h2d")
    if not measured.cuda or share < LEAST:
        return None
    loader, took_ms = measured.loader, measured.took_ms("h2d")
    if loader and loader.batch_bytes:
        copies_ms = loader.batch_bytes / SLOWEST_BYTES_MS + max(1, loader.batch_tensors) * LATENCY_MS
        if took_ms > max(1.0, (measured.micro or (1.0, 0.0))[0]) * copies_ms:
            return _waits(share, took_ms, loader.batch_bytes)
    pinned = bool(loader and loader.pin_memory)
    return Finding(
        id="h2d",
        bound="h2d",
        share=share,
        title="copying batches to the device",
        evidence=f"{ms(took_ms)} of device time a step"
        + (f" for {loader.batch_bytes / 2**20:.1f} MiB" if loader and loader.batch_bytes else "")
        + f", from {'pinned' if pinned else 'pageable'} memory",
        why="a copy from pageable memory goes through a staging buffer, and the host waits for it"
        if not pinned
        else "the copy runs on the stream that computes, so neither overlaps the other",
        instead="pin the batches, move them with `non_blocking=True`, and copy the next one on a separate stream while "
        "this one is computed",
        levers=answering("h2d"),
    )


def _waits(share: float, took_ms: float, size: int) -> Finding:
    return Finding(
        id=WAITS,
        bound="unknown",
        share=share,
        title="the device waits while a batch is moved to it",
        evidence=f"{ms(took_ms)} from before the copies of {size / 2**20:.1f} MiB until after them; any link is faster",
        why="meanwhile the device does other work, for example of another process, or the host issues none",
        instead="see what else uses the GPU (`nvidia-smi`); move a batch while the one before is computed",
    )
