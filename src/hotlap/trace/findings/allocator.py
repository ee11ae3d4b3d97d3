"""Memory taken from the driver inside the loop."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace

from ..scaling import idle_ms, share
from ._base import doing, idle, place, total

GIVEN_BACK = "cudaFree"
"""Under no op: whoever gives memory back to the driver is why it has to be taken again."""


def find(answers: RankTrace) -> list[Finding]:
    """Idle time under cudaMalloc, cudaFree and the like."""
    gaps = idle(answers, "allocator")
    ns = total(gaps)
    if not ns:
        return []
    calls = sum(one.driver_allocations for one in answers.memory) / answers.window.count
    cost = idle_ms(answers, ns)
    return [
        Finding(
            id="allocator",
            bound="memory",
            share=share(answers, cost),
            cost_ms=cost,
            title="memory is taken from the driver in every step",
            where=place([gap for gap in gaps if gap.doing == GIVEN_BACK]) or place(gaps),
            evidence=f"{calls:.3g} driver allocations a step; idle {ms(cost)} under {doing(gaps)}",
            why="cudaMalloc and cudaFree wait for the device; in a steady loop the allocator needs neither",
            instead="take out empty_cache(); use few different shapes; expandable_segments:True if memory is "
            "fragmented",
            levers=answering("allocator"),
        )
    ]
