"""Each step gives memory back to Linux and takes it again."""

from collections.abc import Sequence
from typing import Final

import msgspec

from hotlap.levers import answering
from hotlap.levers.host.host_allocator import LEAST_FAULTS
from hotlap.records.diagnosis import IN_NO_PHASE, LEAST_NAMED, MUCH, Diagnosis, Finding, with_findings
from hotlap.records.durations import ms
from hotlap.records.profile import Lines, place_in
from hotlap.records.run import HostFacts

from ._base import Measured, counted

ID = "page-faults"
LEAST = 0.05
MOST = 0.5
"""Of the bytes of large tensors, what one line makes of them where it is told."""
UPDATES: Final = ("optimizer", "idle-rows")
"""Causes whose time is an update's, with the memory that it takes."""
FROM_DISK = 1.0
"""Faults a step that read from a disk."""


def find(measured: Measured) -> Finding | None:
    """Share: on the CPU what the thread that trains took for faults, by how long one takes there, where that is much of
    the time in which it had a core, as phases are long by waits for one too. Else 0, and no cost: time in the kernel is
    of all threads and not of faults alone, and pages that it clears push others from the caches. As no line of a
    script's makes them alone, they are a cause from MUCH on."""
    host = measured.facts.host if measured.facts else None
    if host is None or not notable(measured):
        return None
    system_ms = measured.of_counted * host.system_ms
    disk = f", {host.major:.0f} of them read from a disk" if host.major >= FROM_DISK else ""
    evidence = f"{host.faults:,.0f} page faults a step{disk}, over {counted(host.steps, 'step')}; Linux takes "
    evidence += f"{ms(system_ms)} a step over all threads"
    taken_ms = measured.of_counted * _taken_ms(host)
    ran_ms = measured.step_ms - measured.of_counted * (host.waited_ms or 0.0)
    known = not measured.cuda and taken_ms >= LEAST_NAMED * ran_ms > 0
    if known:
        evidence += f", {ms(taken_ms)} of it in the training thread, for {host.own_faults:,.0f} faults"
    return Finding(
        id=ID,
        bound="unknown",
        share=min(1.0, taken_ms / ran_ms) if known else 0.0,
        cost_ms=min(measured.step_ms, taken_ms) if known else None,
        title="Linux page faults: memory is given back and taken again each step",
        evidence=evidence,
        why="Linux clears each 4 KiB page when it is next touched, which also evicts data from the caches",
        instead="reuse buffers, or use an allocator that gives nothing back to Linux",
        levers=answering("page-faults"),
        beneath=not known,
        named=known and taken_ms >= MUCH * ran_ms,
    )


def notable(measured: Measured) -> bool:
    """Whether Linux takes a notable part of the step, and a step has many faults."""
    host = measured.facts.host if measured.facts else None
    if host is None or not measured.host_matters or host.faults < LEAST_FAULTS:
        return False
    return measured.of_counted * host.system_ms >= LEAST * measured.step_ms


def at_line(diagnosis: Diagnosis, lines: Lines) -> Diagnosis:
    """The verdict with the line that makes most of the large tensors, where one does: these go back to the kernel. Of
    causes that leave no room beside them, or of an update that is one, they are a part."""
    diagnosis = with_findings(diagnosis, (_within(one, diagnosis.findings, lines) for one in diagnosis.findings))
    file, line, function, made, part = max(
        lines.large, key=lambda row: row[3], default=(len(lines.files), 0, "", 0, 0.0)
    )
    if part < MOST or file >= len(lines.files):
        return diagnosis
    said = f"; {part:.0%} of the bytes of large tensors that the script makes come from this line, "
    said += f"{made / 2**20:,.1f} MiB a step"
    at = place_in(lines.files, (file, line, function))
    return with_findings(
        diagnosis,
        (
            msgspec.structs.replace(one, where=at, evidence=one.evidence + said) if one.id == ID else one
            for one in diagnosis.findings
        ),
    )


def _within(finding: Finding, findings: Sequence[Finding], lines: Lines) -> Finding:
    if finding.id != ID or not finding.share:
        return finding
    causes = [one for one in findings if one.named and one.id not in (ID, *IN_NO_PHASE)]
    most = max(lines.large, key=lambda row: row[3], default=None)
    update = most is not None and most[:2] == lines.places.get("optimizer", (-1, 0))[:2]
    of_update = update and any(one.id in UPDATES for one in causes)
    if not of_update and sum(one.share for one in causes) + finding.share <= 1:
        return finding
    return msgspec.structs.replace(finding, share=0.0, beneath=True, named=False)


def _taken_ms(host: HostFacts) -> float:
    """Of a step, by the thread that trains: for pages that it takes again, not for those by which the process grows. No
    more than the kernel takes."""
    if host.own_faults is None or host.fault_us is None:
        return 0.0
    again = max(0.0, host.own_faults - host.grown)
    return min(host.system_ms, again * host.fault_us / 1000)
