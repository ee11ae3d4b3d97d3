"""Each step leaves memory behind."""

from hotlap.records.diagnosis import Finding, framed
from hotlap.records.memory import Stays
from hotlap.records.sizes import size_text

from ._base import Measured

LEAST_BYTES = 1024
"""A step: what grows by less takes a million steps for a GiB."""
MOST_OF_IT = 0.5
"""Of what a step leaves, that has to come on top: a buffer that is full lets an old one go for each new one."""


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory until that runs out."""
    usage = measured.usage
    most = next(iter(usage.stays), None) if usage is not None else None
    if usage is None or most is None or most.bytes < LEAST_BYTES or usage.grown_bytes < MOST_OF_IT * most.bytes:
        return None
    left = (usage.total_bytes or measured.memory_bytes or 0) - (usage.used_bytes or usage.between_bytes)
    until = f"; at this pace what is free lasts {left / most.bytes:,.0f} steps" if left > 0 else ""
    return Finding(
        id="memory-grows",
        bound="memory",
        share=0.0,
        title=f"each step leaves {size_text(most.bytes)} behind" + (f", held by {held(most)}" if most.names else ""),
        where=framed(most.where),
        evidence=f"{most.blocks:.3g} tensors a step, over the steps that were looked at{until}",
        why="a buffer that fills up grows so too, until it is full",
        instead=_instead(most),
    )


def held(stays: Stays) -> str:
    """What holds it, in words."""
    return ", ".join(f"`{name}`" for name in stays.names)


def _instead(most: Stays) -> str:
    if most.graph:
        return "keep the number, not the tensor with its graph: `total += loss.item()`, or `loss.detach()`"
    if most.names:
        return "keep numbers (`.item()`, sums), or move what must be kept to the CPU (`.cpu()`); empty it each epoch"
    return (
        "no variable of the loop holds it: look for hooks that are registered again in each step (`handle.remove()`), "
        "and for tensors that keep the graph of an earlier step"
    )
