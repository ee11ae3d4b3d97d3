"""Numbers too small to be normal, with which a CPU computes many times as slowly."""

from hotlap.records.diagnosis import Finding

from ._base import MODEL, Measured

LEAST = 0.05
OF_THE_STEP = 0.5
"""That the model takes: else something else costs more."""


def find(measured: Measured) -> Finding | None:
    """Share 0: what they cost takes a run without them to tell."""
    facts = measured.facts
    if facts is None or facts.denormal < LEAST or measured.share(*MODEL) < OF_THE_STEP:
        return None
    return Finding(
        id="denormals",
        bound="compute",
        share=0.0,
        title="denormal numbers",
        evidence=f"{facts.denormal:.0%} of the numbers other than zero in an input, a parameter, its gradient or the "
        "optimizer's state are below 1.2e-38; what they cost was not measured",
        why="a CPU takes tens of cycles more for each operation with one",
        instead="`torch.set_flush_denormal(True)` before the loop, which takes them for zero",
        named=True,
    )
