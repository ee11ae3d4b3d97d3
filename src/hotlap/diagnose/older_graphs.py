"""A backward that goes on into graphs of steps before, so that each takes longer than the last: of a profiled step, the
nodes that it goes through."""

from typing import Final

from hotlap.records.diagnosis import Diagnosis, with_findings
from hotlap.records.durations import ms
from hotlap.records.profile import Lines, place_in

from .causes import Cause
from .statements import kept_at, with_text

LEAST: Final = 2 / 3
"""Of all nodes: two for each of the step's own."""
LEAST_COST: Final = 0.05
"""Of the step."""
GROWS: Final = ("steps-grow", "steps-jump")
"""Findings that tell it without what it is."""
OLDER: Final = Cause(
    "graph-grows",
    "each backward goes on into the graphs of the steps before",
    "what is kept from step to step has the graph that made it, so that the backward goes through all steps so far, "
    "and their activations stay in memory",
    "read it without its graph: `{it}`; or keep its value alone, by `.detach()` where it is kept",
    "compute",
)


def with_older(diagnosis: Diagnosis, lines: Lines) -> Diagnosis:
    """The verdict with that, at the line that reads what was kept."""
    file, line, function, nodes, part, *_ = next(iter(lines.older), (len(lines.files), 0, "", 0, 0.0))
    phases = diagnosis.gpu_phases or diagnosis.phases
    cost_ms = part * (phases.backward or 0.0)
    share = min(1.0, cost_ms / diagnosis.step_ms)
    if part < LEAST or share < LEAST_COST or file >= len(lines.files):
        return diagnosis
    where = place_in(lines.files, (file, line, function))
    said = f"{nodes:,} of {round(nodes / part):,} nodes that a backward goes through are of steps before; they take "
    grown = [one for one in diagnosis.findings if one.id in GROWS]
    said += "; ".join([f"{ms(cost_ms)} of a step in the mean", *(one.evidence for one in grown)])
    found = with_text(OLDER, kept_at(where)).finding(share, where, said, cost_ms)
    return with_findings(diagnosis, (found, *(one for one in diagnosis.findings if one not in grown)))
