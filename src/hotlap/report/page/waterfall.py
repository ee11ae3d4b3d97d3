"""From the bare command to the recipe, proof by proof; what each lever is worth; what was dropped and why."""

from typing import Any, Final

from msgspec import structs

from ...records.page import Page
from ...records.tune import Tune, foretold
from ..tune_screen import (
    beside_what,
    lever_names,
    proved,
    ratio_text,
    reference_parts,
    settings_text,
    worth_notes,
)
from .text import objective

TITLE: Final = "From the bare command to the recipe"
SIGNS: Final = {"whole": "", "less": "−", "more": "+"}


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
            {"lever": one, "settings": settings_text(one.settings).strip(), "by": one.worth.by if one.worth else ""}
            for one in kept
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
    bars, now = [("bare command", "whole", 0.0, before)], before
    names = {one.lever for one in tune.fitted}
    for proof in proved(tune) if tune.objective != "memory" else ():
        new, gone = sorted(lever_names(proof) - names), sorted(names - lever_names(proof))
        name = " + ".join(new) + (f" without {', '.join(gone)}" if gone else "")
        end = before / proof.ratio
        bars.append((name.strip(), "less" if end <= now else "more", now, end))
        now, names = end, lever_names(proof)
    bars.append(("recipe", "whole", 0.0, after))
    widest = max(max(begin, end) for _, _, begin, end in bars)
    return [
        {
            "name": name,
            "change": change,
            "from": begin,
            "to": end,
            "left": min(begin, end) / widest,
            "width": abs(end - begin) / widest,
            "value": abs(end - begin),
            "shown": f"{SIGNS[change]}{shown(abs(end - begin))}",
        }
        for name, change, begin, end in bars
    ]
