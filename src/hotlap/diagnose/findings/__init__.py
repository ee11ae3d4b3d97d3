"""Causes, one file each. A file defines `find(measured) -> Finding | None`; all of them are run."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from hotlap.records.diagnosis import Finding

from ._base import Measured

Find = Callable[[Measured], Finding | None]


@cache
def all_findings() -> dict[str, Find]:
    """Every finding's function by its name, in name order."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return {name: importlib.import_module(f"{__name__}.{name}").find for name in names}
