"""The panel "What should I try first?", filled in from the run; `templates/advise.js` asks the table again as it is
changed."""

from typing import Any, Final

from ...records.advice import AdvicePanel, Measure, Suggestion
from ...records.files import plain
from ...records.page import Page
from .text import base, where

TITLE: Final = "What should I try first?"


def data(page: Page) -> dict[str, Any] | None:
    """The fields, the suggestions as they stand, and the table for the script."""
    panel = page.advice
    if not isinstance(panel, AdvicePanel):
        return None
    measures, advice = panel.table.measures, panel.advice
    own = {one.id: _own(one, base(page)) for one in advice.suggestions}
    return {
        "from_run": bool(advice.measures),
        "main": [_field(one, advice.measures) for one in measures if one.main],
        "parts": [_field(one, advice.measures) for one in measures if not one.main],
        "suggestions": [{**plain(one), **own[one.id]} for one in advice.suggestions],
        "chart": {"table": plain(panel.table), "measures": advice.measures, "own": own},
    }


def _field(measure: Measure, known: dict[str, float]) -> dict[str, Any]:
    value = known.get(measure.name)
    return {
        "name": measure.name,
        "label": measure.label,
        "help": measure.help,
        "value": "" if value is None else f"{round(value * 100, 1):g}",
    }


def _own(one: Suggestion, cwd: str) -> dict[str, Any]:
    """What a run says of a suggestion, in place of the table's words."""
    return {
        "bound": one.bound,
        "levers": one.levers,
        "do": one.do,
        "verify": one.verify,
        "at_most": one.at_most,
        "evidence": one.evidence,
        "place": where(one.where, cwd),
    }
