"""Warnings that are hotlap's affair, kept apart from those of the script."""

import contextlib
import re
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def filtered(action: str, message: str) -> Iterator[None]:
    """Has a filter before all others, by what messages begin with (a pattern).

    `warnings.catch_warnings` does that too, but after it, as after any change that `warnings` is told of, the script
    would see each of its warnings once more.
    """
    entry = (action, re.compile(message), Warning, re.compile(""), 0)
    filters = warnings.filters
    filters.insert(0, entry)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the script put its own filters back
            filters.remove(entry)  # type: ignore[attr-defined]
