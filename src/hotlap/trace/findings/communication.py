"""Communication that no computation hides."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace

from ..scaling import idle_ms, per_step_ms, share
from ._base import idle, place, total

ALONE = "; only traces of all ranks show how much of it is waiting for a late rank"


def find(answers: RankTrace) -> list[Finding]:
    """Exposed transfers, and idle time while the host waits for other ranks. What a rank waits in a collective for the
    last one to come is no transfer: that is `straggler` or `imbalance` (`_ranks.py`)."""
    gaps = idle(answers, "communication")
    exposed = sum(one.exposed_communication_ns for one in answers.breakdown)
    whole = sum(one.communication_ns for one in answers.breakdown)
    transfer = per_step_ms(answers, max(0, exposed - (answers.waited_ns or 0)))
    waited = idle_ms(answers, total(gaps))
    cost = transfer + waited
    if not cost:
        return []
    hidden = 1 - exposed / whole if whole else 0.0
    return [
        Finding(
            id="communication",
            bound="communication",
            share=share(answers, cost),
            cost_ms=cost,
            title="communication that no computation hides",
            where=answers.talks_at or place(gaps),
            evidence=f"{ms(transfer)} a step of collectives alone on the device "
            f"({hidden:.0%} of all communication is hidden), {ms(waited)} waiting on the host"
            + (ALONE if exposed and answers.waited_ns is None else ""),
            why="the step can't end before all ranks have exchanged, and nothing is left to compute meanwhile",
            instead="start exchanging buckets during the backward; larger buckets; send less; see when ranks arrive",
        )
    ]
