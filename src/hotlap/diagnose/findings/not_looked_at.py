"""A script that does something long every so many steps, where that was in steps of which only the time is known."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured


def find(measured: Measured) -> Finding | None:
    """Share: what the mean step takes more than those that were looked at (`agent/step_sampling.py`)."""
    if not measured.unseen_ms:
        return None
    looked_at = measured.share(*measured.phases.__struct_fields__)
    return Finding(
        id="not-looked-at",
        bound="unknown",
        share=1.0 - looked_at,
        title="time in steps that were not sampled",
        evidence=f"{measured.unseen}: {ms(measured.unseen_ms)} more, for reasons that hotlap did not see",
        why="some steps are much longer, and few of these were sampled",
        instead="run with --every-step, which records all of them",
    )
