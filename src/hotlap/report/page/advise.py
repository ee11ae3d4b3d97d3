"""The panel "What should I try first?", filled in from the run; `templates/advise.js` asks the table again as it is
changed."""

from typing import Any, Final

from ...records.advice import AdvicePanel
from ...records.files import plain
from ...records.page import Page
from ..run_screen import place_text
from .text import base

TITLE: Final = "What should I try first?"
OWN: Final = ("bound", "levers", "do", "verify", "at_most", "evidence")
"""What a run says of a suggestion, in place of the table's words."""


def data(page: Page) -> dict[str, Any] | None:
    """The fields, the suggestions as they stand, and the table for the script."""
    panel = page.advice
    if not isinstance(panel, AdvicePanel):
        return None
    measures, advice = panel.table.measures, panel.advice
    own = {
        one.id: {**{name: getattr(one, name) for name in OWN}, "place": place_text(one.where, base(page))}
        for one in advice.suggestions
    }
    return {
        "from_run": bool(advice.measures),
        "main": [one for one in measures if one.main],
        "parts": [one for one in measures if not one.main],
        "known": advice.measures,
        "suggestions": [{**plain(one), **own[one.id]} for one in advice.suggestions],
        "chart": {"table": plain(panel.table), "measures": advice.measures, "own": own},
    }
