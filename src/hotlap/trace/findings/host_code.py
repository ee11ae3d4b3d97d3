"""The device waits while Python between ops runs."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import Gap, RankTrace

from ..scaling import idle_ms, share
from ._base import doing, idle, place, total

MODEL = ("hotlap:forward", "hotlap:backward", "hotlap:optimizer", "Optimizer.")
GLUE_NS = 100_000
"""What Python between two operations takes at most, in the mean."""


def find(answers: RankTrace) -> list[Finding]:
    """Idle time under the user's Python, outside the loader and outside ops."""
    gaps = idle(answers, "python")
    ns = total(gaps)
    if not ns:
        return []
    own = 2 * total(_of_the_loop(answers, gaps)) > ns
    under = "code outside of the model" if own else doing(gaps)
    cost = idle_ms(answers, ns)
    return [
        Finding(
            id="host-code",
            bound="unknown" if own else "launch",
            share=share(answers, cost),
            cost_ms=cost,
            title="the device waits for Python between operations",
            where=place(gaps),
            evidence=f"idle {ms(cost)} a step" + (f", most of it under {under}" if under else ""),
            why="logging, metrics, making batches and other code run while the device has nothing queued",
            instead="run it every n steps, ahead of time or in another thread; compute metrics only in the steps that "
            "log them, on the device",
        )
    ]


def _of_the_loop(answers: RankTrace, gaps: list[Gap]) -> list[Gap]:
    """Those outside of the model, where its phases are known, that are more than what lies between operations."""
    if not any(note.name == MODEL[0] for note in answers.annotations):
        return []
    return [gap for gap in gaps if not gap.doing.startswith(MODEL) and gap.idle_ns > GLUE_NS * gap.count]
