"""Ranks beside each other, from their phases: the one that all the others wait for.

A step of a group ends for all ranks together, so who has work of its own longer has the others wait, in whichever phase
their collective is: mostly the backward. Own work that holds no collective is in `data`, `h2d` and `forward`. Per rank
that is the median over its steady steps; the straggler has more than LEAST of the step above the median of the others.
A rank that is late at random, another one in each step, is none.

Where a collective waits in `other` (gradients averaged by hand), that phase is compared by nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec

from hotlap.records.diagnosis import Bound, Finding, Place
from hotlap.records.durations import ms
from hotlap.records.run import Phases, Step

OWN: Final = ("data", "h2d", "forward")
LEAST: Final = 0.1
ALIKE: Final = 0.1
"""Ranks whose steps differ by more do not step together."""
WAITS: Final[tuple[Bound, ...]] = ("compute", "launch", "unknown")
"""Bounds in whose phases a rank waits for others, dearest first."""
EXCHANGE: Final = ("communication", "backward")
"""Findings of one rank that hold such waits by name (`findings/communication.py`)."""

MODEL: Final = ("forward", "backward", "optimizer")
WAITING: Final = 0.1
"""Of a rank's device time in MODEL: by how much that of another has to be shorter to be told."""

OF_PHASE: Final[dict[str, tuple[Bound, ...]]] = {"data": ("input",), "h2d": ("h2d",)}


@dataclass(frozen=True)
class Late:
    """A rank that the others wait for. index: of the ranks; ms: a step; phase: most of it is there."""

    index: int
    ms: float
    share: float
    phase: str
    said: str


def straggler(ranks: Sequence[Sequence[Step]]) -> Late | None:
    """The rank that the others wait for, of the steady steps of each; None where there is none."""
    walls = [_pace(steps) for steps in ranks if steps]
    if len(walls) < max(2, len(ranks)) or max(walls) > (1 + ALIKE) * min(walls):
        return None
    if not all(any(step.phases for step in steps) for steps in ranks):
        return None
    times = [{name: _median(steps, name) for name in OWN} for steps in ranks]
    own = [sum(row.values()) for row in times]
    index = own.index(max(own))
    others = [row for at, row in enumerate(times) if at != index]
    more = own[index] - median(sum(row.values()) for row in others)
    step = median(walls)
    if more < LEAST * step:
        return None
    usual = {name: median(row[name] for row in others) for name in OWN}
    phase = max(OWN, key=lambda name: times[index][name] - usual[name])
    said = f"{phase} takes {ms(times[index][phase])} there, on the others {ms(usual[phase])}"
    return Late(index, more, more / step, phase, said)


def _pace(steps: Sequence[Step]) -> float:
    """Ms of a step: on the device's clock where that is longer, as the host of a rank whose device waits runs ahead
    until its queue is full."""
    device = [step.gpu_ms for step in steps if step.gpu_ms is not None]
    return max(median(step.wall_ms for step in steps), median(device) if device else 0.0)


def _median(steps: Sequence[Step], name: str) -> float:
    rows = [step.gpu_phases or step.phases for step in steps]
    return median(getattr(row, name) or 0.0 for row in rows if row is not None)


def late_rank(late: Late, rank: int, where: Place | None) -> Finding:
    """The late rank as a cause."""
    return Finding(
        id="straggler",
        bound="communication",
        share=late.share,
        cost_ms=late.ms,
        title=f"the other ranks wait for rank {rank}",
        where=where,
        evidence=f"{ms(late.ms)} a step: {late.said}",
        why="a collective begins when the last rank arrives, so all ranks run at the speed of the slowest",
        instead="give every rank the same work; look at that rank's input, host and clocks",
    )


def without_the_wait(findings: Sequence[Finding], late: Late, mine: bool) -> list[Finding]:
    """Findings of one rank less what the straggler explains. mine: it is the straggler itself."""
    bounds = OF_PHASE.get(late.phase, WAITS) if mine else WAITS
    own = [one for one in findings if one.id not in EXCHANGE and not one.beneath]
    exchange = next((one for one in findings if one.id in EXCHANGE and not mine), None) or next(
        (one for bound in bounds for one in own if one.bound == bound),
        None,
    )
    return [
        msgspec.structs.replace(one, share=max(0.0, one.share - late.share)) if one is exchange else one
        for one in findings
    ]


def without_waiting(findings: Sequence[Finding], device: Sequence[Phases | None]) -> list[Finding]:
    """The first rank's `compute` with no more of the device's time than the rank has that needs least: events around
    collectives also time waiting for other ranks, and who comes last waits least. device: means of each rank, ms."""
    models = [sum(getattr(one, name) or 0.0 for name in MODEL) for one in device if one is not None]
    if len(models) < max(2, len(device)) or min(models) >= (1 - WAITING) * models[0]:
        return list(findings)
    least = min(models) / models[0]
    said = f"up to {ms(models[0] - min(models))} of it is waiting for other ranks, one of which needs {ms(min(models))}"
    return [_at_most(one, least, said) if one.id == "compute" else one for one in findings]


def _at_most(finding: Finding, part: float, said: str) -> Finding:
    return msgspec.structs.replace(finding, share=finding.share * part, evidence=f"{finding.evidence}; {said}")
