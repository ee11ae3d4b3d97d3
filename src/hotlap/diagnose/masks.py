"""Attention with a mask, of a profiled step: masks that are causal, leave nothing out, or hide much."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from hotlap.records.diagnosis import LEAST_NAMED, Finding, Place
from hotlap.records.durations import ms
from hotlap.records.profile import Lines, place_in
from hotlap.records.trace import HostTime, OpRoofline
from hotlap.trace.findings.attention import MASKED
from hotlap.trace.findings.compute import LESS

from .causes import Cause

ATTENTION: Final = re.compile(r"aten::(_scaled_dot_product_.*|where)")
"""Fused attention, and what makes numbers of a mask of truths before it, each time that it is called."""
MUCH: Final = 0.25
"""Of the scores, hidden in whole blocks, from which on leaving them out is a change to make."""
CAUSAL: Final = Cause(
    "causal-mask",
    "a causal mask is given to attention as a tensor",
    "all scores are computed though the mask hides half, the mask is read for each head, and on a GPU it rules "
    "out the flash kernel",
    "`F.scaled_dot_product_attention(q, k, v, is_causal=True)` without `attn_mask`",
    "compute",
)
PADDED: Final = replace(
    CAUSAL,
    title="a causal and padding mask is given to attention as a tensor",
    instead=CAUSAL.instead
    + ": padding is at the end of rows, so a causal mask hides it from the tokens, and the loss ignores it "
    "(`ignore_index`)",
)
NOTHING: Final = Cause(
    "idle-mask",
    "attention gets a mask that hides nothing",
    "it is read for each head, and on a GPU it rules out the flash kernel",
    "leave `attn_mask` out if nothing is padded; the loader knows this without reading from the device",
    "compute",
)
PARTLY: Final = Cause(
    "hiding-mask",
    "attention computes scores that its mask hides",
    "all scores are computed, and the mask is read for each head",
    "FlexAttention with a block mask (`create_block_mask`), compiled, which skips hidden blocks; for rows or "
    "documents of several lengths: nested tensors (`layout=torch.jagged`), `varlen_attn`, "
    "`flash_attn_varlen_func`",
    "compute",
)
CAUSES: Final = {"causal": CAUSAL, "padded": PADDED, "nothing": NOTHING, "partly": PARTLY}


class Mask(NamedTuple):
    """At a place; kind, times, hidden: as in lines.json; made: where."""

    where: Place
    kind: str
    times: int
    hidden: float
    made: Place | None

    @property
    def is_needed(self) -> bool:
        """Whether there is nothing to win, as far as its numbers tell."""
        return self.kind == "partly" and self.hidden < MUCH

    @property
    def cause(self) -> Cause:
        """With the line that makes the mask."""
        made = f"; the mask is made at line {self.made.line}" if self.made is not None else ""
        cause = CAUSES[self.kind]
        return replace(cause, instead=cause.instead + made)

    @property
    def said(self) -> str:
        """Of its masks."""
        at_all = f"in all of {self.times} calls"
        if self.kind == "partly":
            return f"hide {self.hidden:.0%} of the scores in whole blocks"
        return f"{'change nothing' if self.kind == 'nothing' else 'hide exactly the later positions'} {at_all}" + (
            ", and padding at the end" if self.kind == "padded" else ""
        )


def of_lines(lines: Lines) -> Iterator[Mask]:
    """As a profiled step has shown them."""
    for one in lines.masks:
        if one.file < len(lines.files):
            made = place_in(lines.files, one.made) if one.made is not None and one.made[0] < len(lines.files) else None
            where = place_in(lines.files, (one.file, one.line, one.function))
            yield Mask(where, one.kind, one.times, one.hidden, made)


def not_needed(
    rows: Sequence[OpRoofline | HostTime], masks: Sequence[Mask], share: float, step_ms: float
) -> Iterator[Finding]:
    """By line, with the time of attention there, its backward with it. share: of the step, of one ns."""
    for mask in masks:
        took = min(1.0, share * sum(row.ns for row in rows if _is_at(row.where, mask) and ATTENTION.match(_name(row))))
        if took >= LEAST_NAMED and not mask.is_needed:
            cost_ms = mask.hidden * took * step_ms if mask.kind != "nothing" else None
            said = f"{ms(took * step_ms)} a step of attention at this line, whose masks {mask.said}"
            yield mask.cause.finding(took, mask.where, said, cost_ms)


def with_facts(findings: Iterable[Finding], masks: Sequence[Mask], told: Sequence[Finding]) -> Iterator[Finding]:
    """Without what a trace alone says of attention with a mask, where the masks there are told. Of others it says what
    they hide."""
    places = {one.where for one in told}
    for one in findings:
        mask = next((mask for mask in masks if one.id == MASKED and _is_at(one.where, mask)), None)
        if mask is None:
            yield one
        elif mask.where not in places:
            instead = LESS if mask.is_needed else mask.cause.instead
            title, evidence = "attention with a mask", f"{one.evidence}; its masks {mask.said}"
            yield msgspec.structs.replace(one, title=title, evidence=evidence, instead=instead)


def _is_at(where: Place | None, mask: Mask) -> bool:
    return where is not None and (where.file, where.line) == (mask.where.file, mask.where.line)


def _name(row: OpRoofline | HostTime) -> str:
    return row.op if isinstance(row, OpRoofline) else row.name
