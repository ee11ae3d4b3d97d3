"""From the bare command to the recipe, proof by proof; what each lever is worth; what was dropped and why."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import structs

from ...records.page import Page
from ...records.tune import Tune, foretold
from ..tune_screen import (
    beside_what,
    lever_names,
    measured_by,
    proved,
    ratio_text,
    reference_parts,
    settings_text,
    worth_notes,
)
from .text import objective

TITLE: Final = "From the bare command to the recipe"


def data(page: Page) -> dict[str, Any] | None:
    """Of a tune."""
    tune = page.tune
    if tune is None:
        return None
    kept = [structs.replace(one, predicted=foretold(one.predicted)) for one in tune.kept]
    ratios = [ratio for one in kept for ratio in (one.predicted, one.worth and one.worth.ratio) if ratio]
    return {
        "bars": _bars(tune) if tune.kept else [],
        "kept": [
            {"lever": one, "settings": settings_text(one.settings).strip(), "by": measured_by(one)} for one in kept
        ],
        "notes": list(worth_notes(tune)) if kept else [],
        "most": max(ratios, default=1.0),
        "fitted": tune.fitted,
        "beside": beside_what(tune),
        "reference": list(reference_parts(tune.reference)) if tune.reference else [],
        "dropped": [
            {"lever": one, "shown": ratio_text(one.ratio, one.interval)}
            for one in sorted(tune.dropped, key=lambda one: one.ratio is None)
        ],
        "trials": len(tune.trials),
        "tune": tune,
    }


def _bars(tune: Tune) -> list[dict[str, Any]]:
    """Ms a step, or what else was made smaller: of the bare command, what each proof took off it, of the recipe."""
    before, after, shown = objective(tune)
    if not before or after is None:
        return []
    bars, now = [_bar("bare command", "whole", 0.0, before)], before
    names = {one.lever for one in tune.fitted}
    for proof in proved(tune) if tune.objective != "memory" else ():
        new, gone = sorted(lever_names(proof) - names), sorted(names - lever_names(proof))
        name = " + ".join(new) + (f" without {', '.join(gone)}" if gone else "")
        bars.append(_bar(name.strip(), "change", now, before / proof.ratio))
        now, names = before / proof.ratio, lever_names(proof)
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
