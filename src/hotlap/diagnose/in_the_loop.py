"""What a training loop logs or writes in each step, read from its source: for steps so short that samples of the
host's stack name no line."""

import ast
import itertools
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, Place, with_findings

from .causes import Cause
from .source import called_in, is_block, loops_at, place_at, statements_at
from .statements import cause_at

TOLD: Final = frozenset({"logging", "checkpointing", "processes"})
TRAINS: Final = frozenset({"backward", "step"})


def with_lines(diagnosis: Diagnosis, called: Collection[Place]) -> Diagnosis:
    """The verdict with such lines at the code of the loop's own of which no line is known. called: lines that call the
    model."""
    findings = (_with_line(one, diagnosis, called) for one in diagnosis.findings)
    return with_findings(diagnosis, tuple(findings))


def _with_line(finding: Finding, diagnosis: Diagnosis, called: Collection[Place]) -> Finding:
    if finding.id != "host-code" or finding.named or finding.where is not None:
        return finding
    device = diagnosis.device != "cpu"
    found = [one for place in called for one in _of_each_step(place, device, diagnosis.ranks)]
    if len({cause.id for _, cause in found}) != 1:
        return finding
    (where, cause), *_ = found
    lines = ", ".join(dict.fromkeys(str(place.line) for place, _ in found))
    said = f"{finding.evidence}; in each step, at line {lines}: {cause.title}; how much of it that takes is not known"
    return msgspec.structs.replace(finding, where=where, evidence=said, instead=cause.instead)


def _of_each_step(place: Place, device: bool, ranks: int) -> Iterator[tuple[Place, Cause]]:
    """Of the loop around a line that trains, what does so without a condition."""
    loop = next((one for one in loops_at(place) if called_in(one) & TRAINS), None)
    simple = [one for one in ast.walk(loop or ast.Module([], [])) if isinstance(one, ast.stmt) and not is_block(one)]
    for at in (place_at(place.file, one.lineno) for one in simple):
        inside = itertools.takewhile(lambda one: one is not loop, statements_at(at))
        if any(isinstance(one, ast.If) for one in inside):
            continue
        if (cause := cause_at(at, device, ranks)) is not None and cause.id in TOLD:
            yield at, cause
