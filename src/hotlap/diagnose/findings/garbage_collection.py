"""Python's cyclic garbage collector runs in the loop."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from . import rows_one_by_one
from ._base import Measured
from .input import many_tensors

LEAST = 0.05
TENSORS_A_COLLECTION = 70
"""A collection of the youngest comes of 700 objects, and a tensor that is taken over from a worker makes some 8."""


def find(measured: Measured) -> Finding | None:
    """Share: its pauses, over the step. Other threads stand still meanwhile too."""
    host = measured.facts.host if measured.facts else None
    if host is None or not host.steps or not measured.host_matters:
        return None
    gc_ms = measured.of_counted * host.gc_ms
    if gc_ms < LEAST * measured.step_ms:
        return None
    each = host.collections / host.steps
    called = call_of(measured.facts, ("collect",)) if each >= 0.5 else None
    if called is None and _of_rows(measured, each):
        return None
    return Finding(
        id="garbage-collection",
        bound="unknown",
        share=min(1.0, measured.of_step(gc_ms)),
        cost_ms=gc_ms,
        title="Python's garbage collector",
        where=called,
        evidence=f"{ms(gc_ms)} a step, {each:.2g} collections a step",
        why="collections start as objects are made; a full one goes through all objects of the program"
        + (", and the script calls one itself" if called else ""),
        instead="take out `gc.collect()`, or call it once an epoch"
        if called
        else _fewer(measured, each)
        + "`gc.collect(); gc.freeze()` after the first steps, so that existing objects are skipped; or "
        "`gc.disable()`, with a `gc.collect()` between epochs",
        named=True,
    )


def _of_rows(measured: Measured, each: float) -> bool:
    """Whether they come of rows that are fetched one by one, each a tensor or more, and are in that finding's time."""
    loader = measured.loader
    if loader is None or rows_one_by_one.find(measured) is None:
        return False
    return TENSORS_A_COLLECTION * each <= (loader.batch_size or 0) * max(1, loader.batch_tensors)


def _fewer(measured: Measured, each: float) -> str:
    """What makes so many objects a step that some collections come of them, where batches of many tensors do."""
    loader = measured.loader
    if loader is None or each < 1 or not many_tensors(loader) or TENSORS_A_COLLECTION * each > loader.batch_tensors:
        return ""
    return (
        f"make batches of fewer tensors: each batch has {loader.batch_tensors:,}, and receiving them makes more "
        "objects; or "
    )
