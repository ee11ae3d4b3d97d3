"""Tensors that live from step to step and are copied to the device in each: of a profiled run's copies, their part."""

from typing import Final

import msgspec

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.profile import Lines, place_in
from hotlap.records.trace import RankTrace
from hotlap.trace.findings.offloaded import kept

LEAST_BYTES: Final = 1 << 16
"""A step; a few numbers cost a launch, which other findings tell."""
MOST_OF_IT: Final = 0.9


def with_kept(finding: Finding, lines: Lines | None, rank: RankTrace, free: float | None) -> tuple[Finding, ...]:
    """Copies that nothing hides as those of what stays the same tensor, and the rest. free: bytes of the device's
    memory that they may take, None unknown; without room they may be on the host for a reason."""
    if finding.id != "h2d" or lines is None:
        return (finding,)
    sizes = {(lines.files[one[0]], one[1]): one for one in lines.copied if one[0] < len(lines.files)}
    size = sum(one[3] for one in sizes.values())
    copies = [one for one in rank.copies if one not in kept(rank)]
    exposed = sum(one.exposed_ns for one in copies)
    took: dict[tuple[str, int], float] = {}
    for one in copies:
        at = (one.where.file, one.where.line or 0) if one.where is not None else ("", 0)
        if one.way == "in" and at in sizes and one.bytes:
            moved = one.bytes / max(1, rank.window.count)
            took[at] = took.get(at, 0.0) + one.exposed_ns * min(1.0, sizes[at][3] / moved)
    if size < LEAST_BYTES or not exposed or not took or (free is not None and size > free):
        return (finding,)
    file, line, function, _ = sizes[max(took, key=lambda at: took[at])]
    part = min(1.0, sum(took.values()) / exposed)
    part = 1.0 if part >= MOST_OF_IT else part
    cost = None if finding.cost_ms is None else part * finding.cost_ms
    found = msgspec.structs.replace(
        finding,
        id="copied-again",
        share=part * finding.share,
        cost_ms=cost,
        title="the same tensor is copied to the device in each step",
        where=place_in(lines.files, (file, line, function)),
        evidence=f"{size / 2**20:.1f} MiB a step from memory that is kept from step to step; {ms(cost)} a step in such "
        "copies while the device does nothing else",
        why="it stays on the host and is copied whole, though little or nothing of it has changed",
        instead="keep it on the device: `register_buffer` in `__init__` (`model.to(device)` moves no plain attribute), "
        "or `x = x.to(device)` once, before the loop; write its changes on the device",
        levers=(),
        named=True,
    )
    if part == 1.0:
        return (found,)
    left = None if finding.cost_ms is None else finding.cost_ms - (cost or 0.0)
    said = f"{finding.evidence}, with the cause listed separately"
    return (found, msgspec.structs.replace(finding, share=finding.share - found.share, cost_ms=left, evidence=said))
