"""Each step leaves memory behind."""

from hotlap.memory.growth import Growth, growth, levels_off
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
    usage, rises = measured.usage, growth(measured.series) if measured.series is not None else None
    stays = usage.stays if usage is not None else ()
    each, blocks = sum(one.bytes for one in stays), sum(one.blocks for one in stays)
    if usage is None or each < LEAST_BYTES or usage.grown_bytes < MOST_OF_IT * each:
        return None if rises is None else _over_the_run(rises)
    if measured.series is not None and levels_off(measured.series, each):
        return None
    most = next((one for one in stays if one.where is not None), stays[0])
    left = (usage.total_bytes or measured.memory_bytes or 0) - (usage.used_bytes or usage.between_bytes)
    until = f"; at this pace what is free lasts {left / each:,.0f} steps" if left > 0 else ""
    return Finding(
        id="memory-grows",
        bound="memory",
        share=0.0,
        title=f"each step leaves {size_text(each)} behind" + (f", held by {holders(most)}" if most.names else ""),
        where=framed(most.where),
        evidence=f"{blocks:.3g} tensor{'' if blocks == 1 else 's'} a step, over the steps that were looked at"
        + (f", {size_text(most.bytes)} of it at this line" if each > most.bytes else "")
        + until,
        why="a buffer that fills up grows so too, until it is full",
        instead=_instead(most),
    )


def _over_the_run(rises: Growth) -> Finding:
    """Steps that were looked at left nothing, or none were."""
    of = "the process (host memory)" if rises.resident else "tensors on the device"
    return Finding(
        id="memory-grows",
        bound="memory",
        share=0.0,
        title=f"memory rises by {size_text(rises.bytes)} a step",
        evidence=f"{of}, at the ends of {rises.steps:,} steps; the steps that were looked at left nothing behind at a "
        "line, so it may be once an epoch, or no tensor",
        instead="look at what each epoch adds to: lists of results, histories, hooks, caches",
    )


def holders(stays: Stays) -> str:
    """What holds it, in words."""
    return ", ".join(f"`{name}`" for name in stays.names)


def _instead(most: Stays) -> str:
    if most.graph and most.names:
        within = "append" if "[" in most.names[0] else "add up"
        return f"{within} the number (`.item()`) or `.detach()`ed tensors: each keeps the whole graph that made it"
    if most.names:
        return "keep numbers (`.item()`, sums), or move what must be kept to the CPU (`.cpu()`); empty it each epoch"
    return (
        "no variable of the loop holds it: look for hooks that are registered again in each step (`handle.remove()`), "
        "and for tensors that keep the graph of an earlier step"
    )
