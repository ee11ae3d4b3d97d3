"""Logits that the loss leaves out: of a profiled step, the targets that are `ignore_index`."""

from typing import Final

from hotlap.records.diagnosis import Diagnosis, Finding, with_findings
from hotlap.records.profile import Lines, place_in

CLASSES: Final = 1000
"""From so many classes on the head is worth a word."""
LEAST: Final = 0.3
LEAST_COST: Final = 0.05
"""Of the step."""


def with_left_out(diagnosis: Diagnosis, lines: Lines) -> Diagnosis:
    """The verdict with what a head over many classes computes for nothing. Its part of what the model computes is taken
    to be that of its multiplications."""
    many = [one for one in lines.targets if one[4] >= CLASSES and one[3] >= LEAST and 0 <= one[0] < len(lines.files)]
    if not many:
        return diagnosis
    file, line, function, share, classes, head = max(many, key=lambda one: one[3] * one[5])
    computing = sum(one.share for one in diagnosis.findings if one.bound in {"compute", "bandwidth"} and not one.named)
    cost = min(1.0, computing) * head * share
    if cost < LEAST_COST or diagnosis.mode != "train":
        return diagnosis
    found = Finding(
        id="left-out-targets",
        bound="compute",
        share=cost,
        cost_ms=cost * diagnosis.step_ms,
        title=f"logits of {classes:,} classes are computed at positions that the loss ignores",
        where=place_in(lines.files, (file, line, function)),
        evidence=f"{share:.0%} of a step's targets are `ignore_index`; logits are {head:.0%} of the forward's matrix "
        "products",
        why="head, softmax and their backward are computed at these positions too",
        instead="select the labelled positions before the head: `kept = labels != ignore_index`, the loss's own, then "
        "`F.cross_entropy(head(hidden[kept]), labels[kept])`",
        named=True,
    )
    return with_findings(diagnosis, (*diagnosis.findings, found))
