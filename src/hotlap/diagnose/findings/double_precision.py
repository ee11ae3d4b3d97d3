"""The model computes in double precision."""

from hotlap.diagnose.source import call_of, mention_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured
from .launch import computing

MOSTLY = 0.5
"""Of the parameters' numbers: one of 0 dimensions promotes nothing."""
SAVED = 0.5
"""Half as many bytes, and twice as many numbers an instruction; consumer GPUs win 32 times and more."""


def find(measured: Measured) -> Finding | None:
    """Share: of the time that the model computes what single precision saves at least."""
    root = measured.root
    if root is None or root.double < MOSTLY:
        return None
    share, took = computing(measured)
    facts = measured.facts
    place = call_of(facts, ("double", "set_default_dtype")) or mention_of(facts, ("float64", "double"))
    place = place or call_of(facts, ("from_numpy", "as_tensor"))
    return Finding(
        id="double-precision",
        bound="compute",
        share=share * SAVED,
        cost_ms=took * SAVED,
        title=f"{root.name} computes in double precision",
        where=place or measured.place_of(root),
        evidence=f"parameters in {', '.join(root.dtypes)}; forward, backward and update take {ms(took)}",
        why="float64 moves twice the bytes of float32 and computes at half the speed, on most GPUs at 1/32; it is "
        "numpy's default",
        instead="`model.float()`, and data as `torch.from_numpy(x).float()` or `x.astype(numpy.float32)`",
        named=True,
    )
