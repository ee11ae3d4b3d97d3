"""Python's cyclic garbage collector runs in the loop."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

LEAST = 0.05


def find(measured: Measured) -> Finding | None:
    """Share: its pauses, over the step. Other threads stand still meanwhile too."""
    host = measured.facts.host if measured.facts else None
    if host is None or host.gc_ms < LEAST * measured.step_ms or not host.steps or not measured.host_matters:
        return None
    each = host.collections / host.steps
    called = call_of(measured.facts, ("collect",)) if each >= 0.5 else None
    return Finding(
        id="garbage-collection",
        bound="unknown",
        share=min(1.0, host.gc_ms / measured.step_ms),
        cost_ms=host.gc_ms,
        title="Python's garbage collector",
        where=called,
        evidence=f"{ms(host.gc_ms)} a step, {each:.2g} collections a step",
        why="a collection of the oldest generation goes through all objects of the program"
        + (", and the script calls one itself" if called else ""),
        instead="take out `gc.collect()`, or call it once an epoch"
        if called
        else "`gc.collect(); gc.freeze()` after the first steps, so that what is there already is not gone through "
        "again; or `gc.disable()`, with a `gc.collect()` between epochs",
        named=True,
    )
