"""Gradients of the step before take memory through the forward."""

from hotlap.records.diagnosis import Finding
from hotlap.records.memory import BACKWARD, FORWARD
from hotlap.records.sizes import size_text

from ._base import Measured

LEAST = 0.05
"""Of the peak."""


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory. Where gradients add up over several backwards they are needed, and where ranks exchange
    them they may lie in its buffers, which stay."""
    usage, facts = measured.usage, measured.facts
    if facts is not None and facts.world > 1:
        return None
    if usage is None or measured.micro is not None or usage.phase not in {FORWARD, BACKWARD}:
        return None
    if usage.idle_gradients_bytes < LEAST * usage.peak_bytes:
        return None
    stepped = next((one.stepped for one in facts.optimizers if one.stepped), None) if facts is not None else None
    return Finding(
        id="idle-gradients",
        bound="memory",
        share=0.0,
        title="gradients of the last step take memory through the forward",
        where=measured.place_at(stepped) if stepped is not None else None,
        evidence=f"{size_text(usage.idle_gradients_bytes)} of the peak of {size_text(usage.peak_bytes)}, which is in "
        f"the {usage.phase}",
        why="the update was their last use",
        instead="`optimizer.zero_grad()` right after `optimizer.step()`, not before the backward; it frees them unless "
        "`set_to_none=False` says otherwise",
    )
