"""What targets share."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from hotlap.records.errors import missing_named

from .series import Series

PREFIX: Final = "hotlap"


@dataclass(frozen=True)
class Target:
    """A tool that a run can be exported to. suffix: of the file that it writes, "" for a folder. write: writes a run
    to a path and returns lines that say how to open it, label stands before each. online: may it use the network, where
    the user asks for it."""

    name: str
    suffix: str
    write: Callable[[Series, Path], list[str]]
    online: Callable[[Series, Path], list[str]] | None = None
    label: str = "open"


def load(module: str, extra: str) -> ModuleType:
    """An optional library. Raises PackageMissing that names the extra."""
    with missing_named(extra):
        return importlib.import_module(module)
