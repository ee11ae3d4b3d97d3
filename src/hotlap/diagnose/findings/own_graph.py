"""CUDA graphs that the script records and replays itself: a replay is one piece, of which no phase is known."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

UNTOLD = "a replay is one launch; --profile shows what takes the time in it"


def find(measured: Measured) -> Finding | None:
    """Share: the `other` phase, to which the replays are charged."""
    facts = measured.facts
    if facts is None or not facts.replayed:
        return None
    share = measured.share("other")
    return Finding(
        id="own-graph",
        bound="unknown" if measured.drained else "compute",
        share=share,
        title="the script's own CUDA graphs, and code around them",
        evidence=f"{ms(measured.phases.other or 0)} of host time a step"
        + (f", {ms(measured.gpu_phases.other or 0)} on the device's clock" if measured.gpu_phases else "")
        + f"; {', '.join(facts.replayed)} are in them",
        why=UNTOLD,
        instead="make the captured work cheaper (compile it first, lower precision); read values every n steps",
    )
