"""The device waits while Python between ops runs."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace

from ._base import doing, idle, idle_ms, place, share, total


def find(answers: RankTrace) -> list[Finding]:
    """Idle time under the user's Python, outside the loader and outside ops."""
    gaps = idle(answers, "python")
    ns = total(gaps)
    if not ns:
        return []
    under = doing(gaps)
    cost = idle_ms(answers, ns)
    return [
        Finding(
            id="host-code",
            bound="launch",
            share=share(answers, cost),
            cost_ms=cost,
            title="the device waits for Python between operations",
            where=place(gaps),
            evidence=f"idle {ms(cost)} a step" + (f", most of it under {under}" if under else ""),
            why="logging, metrics, batches made by hand and glue code run while nothing is queued",
            instead="do it every n steps, in another thread or ahead; compute metrics only in the steps that "
            "log them, on the device",
        )
    ]
