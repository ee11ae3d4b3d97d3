"""Whether learning is unchanged: losses of the bare command and of the recipe, step by step."""

from typing import Any, Final

from ...records.page import Page

TITLE: Final = "Parity: is learning unchanged?"


def data(page: Page) -> dict[str, Any] | None:
    """Of a tune."""
    if page.tune is None or (not page.curves and page.tune.parity is None):
        return None
    return {
        "parity": page.tune.parity,
        "curves": [one.name for one in page.curves],
        "chart": {"curves": page.curves} if page.curves else None,
    }
