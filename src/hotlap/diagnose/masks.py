"""Attention with a mask that it does not need: of a profiled step, masks that are causal, or leave nothing out."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hotlap.records.diagnosis import LEAST_NAMED, Finding, Place
from hotlap.records.durations import ms
from hotlap.records.profile import Lines, place_in
from hotlap.records.trace import HostTime, OpRoofline

from .causes import Cause

FUSED: Final = "aten::_scaled_dot_product_"
SKIPPED: Final = 0.5
"""Of the scores, that a causal kernel does not compute; of two squares on the diagonal one."""
CAUSAL: Final = Cause(
    "causal-mask",
    "a causal mask is given to attention as a tensor",
    "with a mask all scores are computed, of which it hides half, it is read for each head, and on a GPU the flash "
    "kernel, which takes none, is left out",
    "`F.scaled_dot_product_attention(q, k, v, is_causal=True)` without `attn_mask`",
    "compute",
)
NOTHING: Final = Cause(
    "idle-mask",
    "attention gets a mask that leaves nothing out",
    "it is read for each head, and on a GPU the flash kernel, which takes none, is left out",
    "leave `attn_mask` out where nothing is padded, which the loader knows without a look at the device",
    "compute",
)


class Mask(NamedTuple):
    """At a place; times: how many a step has."""

    where: Place
    causal: bool
    times: int


def of_lines(lines: Lines) -> Iterator[Mask]:
    """As a profiled step has shown them."""
    for file, line, function, kind, times in lines.masks:
        if file < len(lines.files):
            yield Mask(place_in(lines.files, (file, line, function)), kind == "causal", times)


def not_needed(
    rows: Sequence[OpRoofline | HostTime], masks: Sequence[Mask], share: float, step_ms: float
) -> Iterator[Finding]:
    """By line, with the time of attention there, its backward with it. share: of the step, of one ns."""
    for where, causal, times in masks:
        at = where.file, where.line
        there = [row for row in rows if row.where is not None and (row.where.file, row.where.line) == at]
        ns = sum(row.ns for row in there if _name(row).startswith(FUSED))
        took = min(1.0, share * ns)
        if took >= LEAST_NAMED:
            cost_ms = SKIPPED * took * step_ms if causal else None
            said = "leave out exactly what comes later" if causal else "are the same as none"
            said = f"{ms(took * step_ms)} a step of attention at this line, whose masks {said} in all of {times} calls"
            yield (CAUSAL if causal else NOTHING).finding(took, where, said, cost_ms)


def _name(row: OpRoofline | HostTime) -> str:
    return row.op if isinstance(row, OpRoofline) else row.name
