"""Gradients are exchanged between ranks in each micro-step, though they are summed before an update."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding

from ._base import Measured
from .communication import WRAPPER, exchange_share

LEAST_MICRO = 2.0
"""Backwards an update: a GAN has one and a half, of two models."""
ONCE = 1.5
"""Exchanges an update, up to which that is taken for one."""
REPLACES = ("communication", "backward")


def find(measured: Measured) -> Finding | None:
    """Share: of what the exchange takes of the step, that of all micro-steps but one."""
    facts = measured.facts
    if facts is None or facts.world < 2 or not facts.optimizer_steps:
        return None
    root = next((one for one in facts.roots if one.exchange is not None), None)
    micro = facts.backwards / facts.optimizer_steps
    if root is None or root.exchange is None or micro < LEAST_MICRO or root.exchange.backwards * ONCE > micro:
        return None
    return Finding(
        id="exchange-each-micro-step",
        bound="communication",
        share=exchange_share(measured) * (1 - 1 / micro),
        title=f"gradients are exchanged in more than one of {micro:.3g} micro-steps",
        where=call_of(facts, ("backward",)) or measured.place_of(root),
        evidence=f"{facts.backwards} backwards for {facts.optimizer_steps} updates, and {WRAPPER} exchanged in more "
        "than one of them for each update",
        why="only the sum over the micro-steps is used; one exchange, in the last of them, is enough",
        instead="`with model.no_sync():` around the forward and backward of all micro-steps but the last",
        named=True,
    )
