"""The causes: what each costs, what the numbers are, the user's lines, and what helps."""

from typing import Any, Final

from ...records.diagnosis import OF_MEMORY, Finding, Place
from ...records.page import Page, Snippet
from ..console import place_text
from ..trace_screen import gains
from .text import base, shown_rank

TITLE: Final = "Findings"
MOST: Final = 12
OPEN: Final = 3
"""Findings that are shown at once; the others unfold."""
HIDES: Final = frozenset({"input", "h2d", "sync", "communication"})
"""Bounds whose time may go away whole, as waiting does and arithmetic does not. Not `launch`: where its cost is not
known, its share is all of the model's time, the device's own work in it."""


def data(page: Page) -> dict[str, Any] | None:
    """Findings of the run, of the trace, or of both sides of a tune."""
    if page.tune is not None:
        after = page.tune.tuned
        groups = [("before", page.tune.baseline.findings), ("after", after.findings if after else ())]
    elif judged := page.diagnosis or page.traces:
        groups = [("", judged.findings)]
    else:
        return None
    lines, rank = {_key(one.where): one for one in page.snippets}, shown_rank(page)
    parts = []
    for name, found in groups:
        shown = [(at < OPEN or one.beneath, _shown(one, lines, base(page))) for at, one in enumerate(found[:MOST])]
        if shown:
            parts.append(
                (name, [one for at_once, one in shown if at_once], [one for at_once, one in shown if not at_once])
            )
    timed = None if page.tune else page.diagnosis or rank
    what_if = gains((page.traces.replay if page.traces else None) or (rank.replay if rank else None))
    return {"groups": parts, "what_if": what_if, "step_ms": timed.step_ms if timed else None}


def _key(place: Place) -> tuple[object, ...]:
    return place.file, place.line


def _shown(finding: Finding, lines: dict[tuple[object, ...], Snippet], cwd: str) -> dict[str, Any]:
    snippet = lines.get(_key(finding.where)) if finding.where else None
    return {
        "finding": finding,
        "of_memory": finding.id in OF_MEMORY,
        "where": place_text(finding.where, cwd),
        "snippet": snippet,
        "at_most": 1 / (1 - finding.share) if finding.bound in HIDES and 0 < finding.share < 1 else None,
        "lines": list(enumerate(snippet.lines, snippet.first)) if snippet else [],
    }
