"""From the bare command to the recipe, lever by lever; predicted beside measured; what was dropped and why."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import structs

from ...records.page import Page
from ...records.tune import Tune, foretold
from ..tune_screen import beside_what, reference_parts, settings_text
from .text import objective

TITLE: Final = "From the bare command to the recipe"
LEAST: Final = 0.005
"""Of the step: a smaller difference gets no bar."""


def data(page: Page) -> dict[str, Any] | None:
    """Of a tune."""
    tune = page.tune
    if tune is None:
        return None
    kept = [structs.replace(one, predicted=foretold(one.predicted, one.predicted_by)) for one in tune.kept]
    ratios = [ratio for one in kept for ratio in (one.predicted, one.measured) if ratio]
    return {
        "bars": _bars(tune) if tune.kept else [],
        "kept": [{"lever": one, "settings": settings_text(one.settings).strip()} for one in kept],
        "most": max(ratios, default=1.0),
        "fitted": tune.fitted,
        "beside": beside_what(tune),
        "reference": list(reference_parts(tune.reference)) if tune.reference else [],
        "dropped": sorted(tune.dropped, key=lambda one: one.ratio is None),
        "trials": len(tune.trials),
        "tune": tune,
    }


def _bars(tune: Tune) -> list[dict[str, Any]]:
    """Ms a step, or what else was made smaller: of the bare command; then each lever as its own trial measured it, one
    after another; the difference between that and the fresh runs of all of them together; the recipe."""
    before, after, shown = objective(tune)
    if before is None and tune.objective == "time":
        before = tune.baseline.step_ms
    if not before:
        return []
    bars, now = [_bar("bare command", "whole", 0.0, before)], before
    for one in tune.kept:
        if one.measured:
            bars.append(_bar(one.lever, "change", now, now / one.measured))
            now /= one.measured
    if after is not None:
        if abs(after - now) > LEAST * before:
            bars.append(_bar("measured together", "rest", now, after))
        bars.append(_bar("recipe", "whole", 0.0, after))
    widest = max(one["high"] for one in bars)
    return [_drawn(one, widest, shown) for one in bars]


def _bar(name: str, kind: str, begin: float, end: float) -> dict[str, Any]:
    change = kind if kind == "whole" else "less" if end <= begin else "more"
    return {"name": name, "change": change, "from": begin, "to": end, "low": min(begin, end), "high": max(begin, end)}


def _drawn(one: dict[str, Any], widest: float, shown: Callable[[float], str]) -> dict[str, Any]:
    """With its place on the rail, and its number."""
    value = one["high"] - one["low"]
    sign = {"whole": "", "less": "−", "more": "+"}[one["change"]]
    return {
        **one,
        "left": one["low"] / widest,
        "width": value / widest,
        "value": value,
        "shown": f"{sign}{shown(value)}",
    }
