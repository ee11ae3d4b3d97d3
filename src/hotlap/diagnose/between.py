"""Host code between the model's call and its backward. The forward's phase holds it, as the loss is there."""

import ast
from collections import defaultdict
from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, Place
from hotlap.records.durations import ms
from hotlap.records.profile import Samples, UserFrame
from hotlap.records.run import Facts

from .batches import RUNS
from .samples import LEAST_LOOKS, known_paths, without_comprehension
from .source import calls_in, function_at, loops_at, name_at

LEAST: Final = 0.1
LEAST_OF_ALL: Final = 0.05
"""Of the forward, and of all looks, from which it is told."""


def with_between(diagnosis: Diagnosis, samples: Samples, facts: Facts | None) -> Diagnosis:
    """The verdict of a run on the CPU, whose computing says how much of the forward this is, where that is notable."""
    root = facts.model if facts else None
    if diagnosis.device != "cpu" or root is None or root.called is None or samples.looks < LEAST_LOOKS:
        return diagnosis
    file, line, function = root.called
    models = tuple(f"{one.name}." for one in facts.roots) if facts else ()
    end = _backward_after(Place(file=file, line=line, function=function))
    between: defaultdict[UserFrame, float] = defaultdict(float)
    forward = 0.0
    for phase, frames, inside, took in known_paths(samples.paths, samples.files):
        here = [one[1] for one in frames if (samples.files[one[0]], one[2]) == (file, function)]
        models_own = RUNS.match(inside) or any(one[2].startswith(models) for one in frames)
        if phase in {"forward", "other"} and any(line < at < end for at in here) and not models_own:
            between[frames[-1]] += took
        elif phase == "forward":
            forward += took
    took, total = sum(between.values()), sum(row[-1] for row in samples.paths)
    whole = took + forward
    if took <= max(LEAST * whole, LEAST_OF_ALL * total):
        return diagnosis
    took_ms = (diagnosis.phases.forward or 0.0) * took / whole
    _, at, function = max(between, key=lambda frame: between[frame])
    said = f"; {ms(took_ms)} of the forward lies between the model's call and the backward, most of it in "
    said += f"{without_comprehension(function)} at line {at}"
    findings = tuple(_saying(one, said) for one in diagnosis.findings)
    return msgspec.structs.replace(diagnosis, findings=findings)


def _saying(finding: Finding, said: str) -> Finding:
    if finding.id != "compute":
        return finding
    return msgspec.structs.replace(finding, evidence=finding.evidence + said)


def _backward_after(place: Place) -> int:
    """The line of the next backward in the function or the loop around a line; 0 where there is none."""
    around: ast.AST | None = function_at(place) or next(iter(loops_at(place)), None)
    calls = calls_in(around) if around is not None else iter(())
    lines = [one.lineno for one in calls if name_at(one.func) == "backward"]
    return min((line for line in lines if line > (place.line or 0)), default=0)
