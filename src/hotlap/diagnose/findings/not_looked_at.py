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
        title="steps that were timed and not looked at",
        evidence=f"{measured.unseen}: {ms(measured.unseen_ms)} more, which may be spent on anything",
        why="the script does something long in some steps, and few of these were among those that were looked at",
        instead="--every-step, which looks at all of them",
    )
