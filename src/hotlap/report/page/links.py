"""Files that other programs open, and how."""

from typing import Any, Final

from ...records.page import Page
from ..console import quote

TITLE: Final = "Open elsewhere"


def data(page: Page) -> dict[str, Any] | None:
    """Traces for Perfetto, snapshots for memory_viz."""
    traces = [one for one in page.artefacts if one.kind == "trace"]
    snapshots = [one for one in page.artefacts if one.kind == "memory"]
    return {
        "traces": traces,
        "snapshots": snapshots,
        "run": page.run,
        "folder": quote(page.folder),
        "chart": {} if traces else None,
    }
