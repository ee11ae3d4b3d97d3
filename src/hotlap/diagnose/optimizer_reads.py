"""An optimizer that reads values from the device, by a trace: which values, and its loop over parameters with them."""

from collections.abc import Iterable, Sequence

import msgspec

from hotlap.records.diagnosis import WAITS, Finding
from hotlap.records.run import Facts, OptimizerFacts
from hotlap.trace.analyses.syncs import BY_OPTIMIZER

from .findings import counters_on_device, rate_on_device
from .findings.counters_on_device import INSTEAD, LEAST
from .findings.rate_on_device import as_number, reads_settings, settings, why


def with_reads(
    kept: Sequence[Finding], shown: Sequence[Finding], facts: Facts | None
) -> tuple[list[Finding], list[Finding]]:
    """Findings of the run and of its trace, in which waits and kernels of such an optimizer are one. Where the trace
    has no such waits, a rate on the device is no cause."""
    waits = next((one for one in shown if one.named and one.title == WAITS + BY_OPTIMIZER), None)
    one = _of(waits, facts.optimizers) if waits is not None and facts is not None else None
    if waits is None or one is None:
        return [other for other in kept if other.id != rate_on_device.ID], list(shown)
    loop = next((other for other in shown if other.id == "optimizer" and other.title.startswith(f"{one.name}.")), None)
    took = waits.share + (loop.share if loop is not None else 0.0)
    by_counters = one.counters >= LEAST
    told = msgspec.structs.replace(
        waits,
        share=took,
        cost_ms=waits.cost_ms * took / waits.share if waits.cost_ms and waits.share else waits.cost_ms,
        title=f"{one.name} reads {'its step counters' if by_counters else settings(one)} from the device, parameter by "
        "parameter",
        evidence=f"{waits.evidence}; {one.tensors} parameters" + (f", {loop.evidence}" if loop is not None else ""),
        why=why(one) if not by_counters else waits.why,
        instead=INSTEAD if by_counters else as_number(one),
        levers=loop.levers if loop is not None else (),
    )
    rest = [other for other in kept if other.id not in {counters_on_device.ID, rate_on_device.ID}]
    return rest, [told if other is waits else other for other in shown if other is not loop]


def _of(waits: Finding, optimizers: Iterable[OptimizerFacts]) -> OptimizerFacts | None:
    """The optimizer that waits: that whose step is at the line, where there are several."""
    those = [one for one in optimizers if one.counters >= LEAST or reads_settings(one)]
    at = waits.where
    here = [one for one in those if one.stepped and at is not None and one.stepped[:2] == (at.file, at.line)]
    return next(iter(here or those), None) if len(here or those) == 1 else None
