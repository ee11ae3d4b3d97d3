"""A loader's iterator is made anew for each batch."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

LEAST = 0.05
LEAST_ITERATORS = 8
SHORT = 4
"""Batches of an epoch, up to which an iterator for each epoch is one for few steps, as is usual."""
REPLACES = ("input", "workers-restart")


def find(measured: Measured) -> Finding | None:
    """Share: the data phase."""
    loader, share = measured.loader, measured.share("data")
    if loader is None or share < LEAST or (loader.epoch_batches or SHORT) < SHORT:
        return None
    if loader.iterators < max(LEAST_ITERATORS, loader.batches / 2):
        return None
    rows = f"a permutation of {loader.rows:,} rows is drawn" if loader.rows else "the sampler starts again"
    workers = f", {loader.workers} worker processes start" if loader.workers and not loader.persistent else ""
    return Finding(
        id="iterator-each-step",
        bound="input",
        share=share,
        cost_ms=share * measured.step_ms,
        title=f"an iterator over {loader.dataset} is made for each batch",
        where=measured.place_at(loader.loop),
        evidence=f"{loader.iterators} iterators for {loader.batches} batches; data takes "
        f"{ms(measured.phases.data or 0)} of a step",
        why=f"for each of them {rows}{workers}, and only its first batch is used",
        instead="make it once, `batches = iter(loader)`, take `next(batches)`, and make a new one at StopIteration; or "
        "`for batch in loader:`",
        named=True,
    )
