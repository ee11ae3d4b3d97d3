"""Step times over the run, with warm-up and outliers marked, and the losses."""

from typing import Any, Final

from ...records.page import Page

TITLE: Final = "Steps over the run"


def data(page: Page) -> dict[str, Any] | None:
    """The steps of each rank."""
    if not page.steps or page.diagnosis is None:
        return None
    found, first = page.diagnosis, page.steps[0]
    left_out = found.steps - found.warmup_steps - found.steady_steps
    counts = {"warm-up": found.warmup_steps, "steady": found.steady_steps, "left out": left_out}
    return {
        "ranks": [one.rank for one in page.steps],
        "first": first,
        "counts": counts,
        "chart": {"ranks": page.steps, "step_ms": found.step_ms, "spread": found.spread},
    }
