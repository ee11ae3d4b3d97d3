"""The device waits for the next batch."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace

from ..scaling import idle_ms, share
from ._base import doing, idle, place, total


def find(answers: RankTrace) -> list[Finding]:
    """Idle time under `next(DataLoader)`."""
    gaps = idle(answers, "input")
    ns = total(gaps)
    if not ns:
        return []
    cost = idle_ms(answers, ns)
    return [
        Finding(
            id="input",
            bound="input",
            share=share(answers, cost),
            cost_ms=cost,
            title="the device waits for the next batch",
            where=place(gaps),
            evidence=f"idle {ms(cost)} a step while the host is in {doing(gaps) or 'the loader'}",
            why="batches are made more slowly than they are used, and the device has nothing else queued",
            instead="make batches in worker processes, ahead of their use, or make each one cheaper",
            levers=answering("input"),
        )
    ]
