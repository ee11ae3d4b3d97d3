"""One step: phases, host threads, device streams, and why the device is idle."""

from typing import Any, Final

from ...records.page import Page
from ...records.timeline import KINDS
from .text import TERMS, shown_rank

TITLE: Final = "Timeline of one step"
GROUPS: Final = (
    ("phases", frozenset(range(6))),
    ("host", frozenset(range(6, 12))),
    ("device", frozenset(range(12, 15))),
    ("device idle because of", frozenset(range(15, len(KINDS)))),
)
"""Kinds by what they are of."""


def data(page: Page) -> dict[str, Any] | None:
    """The drawn ranks, the one shown first in front."""
    first = shown_rank(page)
    if page.traces is None or first is None:
        return None
    ranks = sorted(page.traces.ranks, key=lambda rank: (rank.rank != first.rank, rank.rank))
    drawn = [(rank.rank, rank.timeline) for rank in ranks if rank.timeline is not None]
    if not drawn:
        return None
    timelines = [one for _, one in drawn]
    used = {kind for one in timelines for row in one.rows for kind in row.kind}
    return {
        "ranks": [rank for rank, _ in drawn],
        "timeline": timelines[0],
        "legend": [
            (name, [(KINDS[k], TERMS.get(KINDS[k].removeprefix("idle: "), "")) for k in sorted(used & kinds)])
            for name, kinds in GROUPS
        ],
        "chart": {"kinds": KINDS, "timelines": timelines},
    }
