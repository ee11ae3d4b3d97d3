"""Each step gives memory back to Linux and takes it again."""

from hotlap.levers import answering
from hotlap.levers.host.host_allocator import LEAST_FAULTS
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured, counted

LEAST = 0.05
FROM_DISK = 1.0
"""Faults a step that read from a disk."""


def find(measured: Measured) -> Finding | None:
    """Share 0: the phases hold this time. At most: time in the kernel is of all threads, and not of faults alone."""
    host = measured.facts.host if measured.facts else None
    if host is None or not measured.host_matters:
        return None
    system_ms = measured.of_counted * host.system_ms
    if host.faults < LEAST_FAULTS or system_ms < LEAST * measured.step_ms:
        return None
    disk = f", {host.major:.0f} of them read from a disk" if host.major >= FROM_DISK else ""
    return Finding(
        id="page-faults",
        bound="unknown",
        share=0.0,
        cost_ms=min(measured.step_ms, system_ms),
        title="Linux page faults: memory is given back and taken again each step",
        evidence=f"{host.faults:.0f} page faults a step{disk}, over {counted(host.steps, 'step')}; the kernel takes "
        f"{ms(system_ms)} a step of all threads",
        why="the kernel clears each page of 4 KiB again when it is next touched",
        instead="keep the memory: fill the same buffers again, or an allocator that gives nothing back",
        levers=answering("page-faults"),
        beneath=True,
    )
