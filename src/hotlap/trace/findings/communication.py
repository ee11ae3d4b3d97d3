"""Communication that no computation hides."""

from hotlap.records.diagnosis import Finding
from hotlap.records.trace import RankTrace

from ._base import idle, idle_ms, per_step_ms, place, share, total


def find(answers: RankTrace) -> list[Finding]:
    """Exposed collectives, and idle time while the host waits for other ranks."""
    gaps = idle(answers, "communication")
    exposed = sum(one.exposed_communication_ns for one in answers.breakdown)
    whole = sum(one.communication_ns for one in answers.breakdown)
    waited = idle_ms(answers, total(gaps))
    cost = per_step_ms(answers, exposed) + waited
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
            where=place(gaps),
            evidence=f"{per_step_ms(answers, exposed):.2f} ms a step of collectives alone on the device "
            f"({hidden:.0%} of all communication is hidden), {waited:.2f} ms waiting on the host",
            why="the step can't end before the ranks have agreed, and there is nothing left to compute meanwhile",
            instead="start buckets while the backward still runs; larger buckets; less to send; see the ranks' arrival",
        )
    ]
