"""Batches are copied to the device while it waits."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

LEAST = 0.02


def find(measured: Measured) -> Finding | None:
    """Share: the h2d phase on the device's clock."""
    share = measured.share("h2d")
    if not measured.cuda or share < LEAST:
        return None
    loader = measured.loader
    pinned = bool(loader and loader.pin_memory)
    return Finding(
        id="h2d",
        bound="h2d",
        share=share,
        title="copying batches to the device",
        evidence=f"{ms(measured.gpu_phases.h2d or 0)} of device time a step"  # type: ignore[union-attr]
        + (f" for {loader.batch_bytes / 2**20:.1f} MiB" if loader and loader.batch_bytes else "")
        + f", from {'pinned' if pinned else 'pageable'} memory",
        why="a copy from pageable memory goes through a staging buffer and the host waits for it"
        if not pinned
        else "the copy runs on the stream that computes, so neither overlaps the other",
        instead="pin the batches, move them with `non_blocking=True`, and copy the next one on a stream of its own "
        "while this one is computed",
        levers=answering("h2d"),
    )
