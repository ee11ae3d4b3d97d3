"""The panel "What should I try first?", filled in from the run; `templates/advise.js` asks the table again as it is
changed."""

from typing import Any, Final

import msgspec

from ...records.advice import AdvicePanel
from ...records.page import Page
from ..console import place_text
from .text import base

TITLE: Final = "What should I try first?"
SHOWN: Final = ("id", "title", "because", "at_most", "evidence", "do", "verify")
"""Of a suggestion."""


def data(page: Page) -> dict[str, Any] | None:
    """The fields, the suggestions as they stand, and the table for the script."""
    panel = page.advice
    if not isinstance(panel, AdvicePanel):
        return None
    measures, advice = panel.table.measures, panel.advice
    said = [
        {**{name: getattr(one, name) for name in SHOWN}, "place": place_text(one.where, base(page))}
        for one in advice.suggestions
    ]
    return {
        "from_run": bool(advice.measures),
        "main": [one for one in measures if one.main],
        "parts": [one for one in measures if not one.main],
        "known": advice.measures,
        "suggestions": said,
        "chart": {"table": msgspec.to_builtins(panel.table), "measures": advice.measures, "suggestions": said},
    }
