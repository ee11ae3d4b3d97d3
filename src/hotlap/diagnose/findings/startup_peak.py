"""Memory peaks before the loop, or in its first steps, not in the steps that follow."""

from hotlap.records.diagnosis import Finding, framed
from hotlap.records.sizes import size_text

from ._base import Measured

MORE, LEAST_BYTES = 1.1, 2**26
"""Times the peak of steady steps, and bytes beyond it."""
INSTEAD = {
    "before the loop": "load with `map_location='cpu', mmap=True` and `del` what was loaded; build a large model on "
    "`torch.device('meta')` and load with `assign=True`",
    "in the first steps": "the first update makes the optimizer's state: `fused=True` takes no temporaries there; and "
    "use the largest batch at other times than the first",
}


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory."""
    steady, early = measured.usage, measured.early
    most = max(early, key=lambda when: early[when].peak_bytes, default=None)
    if steady is None or most is None:
        return None
    peak = early[most].peak_bytes
    if peak < MORE * steady.peak_bytes or peak - steady.peak_bytes < LEAST_BYTES:
        return None
    line = next(iter(early[most].lines), None)
    return Finding(
        id="startup-peak",
        bound="memory",
        share=0.0,
        title=f"memory peaks {most}, not in the steps that follow",
        where=framed(line.where) if line is not None else None,
        evidence=f"{size_text(peak)} then, {size_text(steady.peak_bytes)} in steady steps"
        + (f"; {size_text(line.bytes)} of it at this line" if line is not None else ""),
        instead=INSTEAD[most],
    )
