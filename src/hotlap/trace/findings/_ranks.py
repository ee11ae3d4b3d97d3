"""Causes that show only beside other ranks."""

from hotlap.records.diagnosis import Finding
from hotlap.records.trace import Ranks


def straggler(balance: Ranks) -> list[Finding]:
    """The rank that the others wait for."""
    if balance.straggler is None:
        return []
    step = max(load.step_ns for load in balance.loads)
    return [
        Finding(
            id="straggler",
            bound="communication",
            share=balance.cost_ns / step if step else 0.0,
            cost_ms=balance.cost_ns / 1e6,
            title=f"the other ranks wait for rank {balance.straggler}",
            where=balance.where,
            evidence=f"{balance.cost_ns / 1e6:.2f} ms a step; {balance.why}",
            why="a collective begins when the last rank has come: all ranks run at the pace of the slowest",
            instead="give every rank the same work; look at that rank's input, host and clocks",
        )
    ]
