"""An optimizer's step counters lie on the device, and each update reads them back."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import OptimizerFacts

from ._base import Measured

ID, LEAST = "counters-on-device", 4
"""Counters that are read one after another; fewer hardly show."""
INSTEAD = (
    "`torch.load(..., map_location='cpu')` before `optimizer.load_state_dict`, or `fused=True`, which does not "
    "read the counters"
)


def find(measured: Measured) -> Finding | None:
    """Share: that of the update, which is little else where it waits for so many values."""
    optimizers: tuple[OptimizerFacts, ...] = measured.facts.optimizers if measured.facts else ()
    one = max(optimizers, key=lambda optimizer: optimizer.counters, default=None)
    if one is None or one.counters < LEAST:
        return None
    updating = measured.took_ms("optimizer")
    return Finding(
        id=ID,
        bound="sync",
        share=measured.share("optimizer"),
        cost_ms=updating,
        title=f"{one.name} reads its step counters from the device",
        where=call_of(measured.facts, ("load_state_dict",)) or measured.place_of(measured.root),
        evidence=f"{one.counters} counters are on the device, as after loading a checkpoint there; the update takes "
        f"{ms(updating)} a step",
        why="it is neither fused nor capturable, so it reads each counter and waits for the device each time",
        instead=INSTEAD,
        named=True,
    )
