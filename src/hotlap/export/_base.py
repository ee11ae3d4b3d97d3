"""What targets share."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from hotlap.records.errors import UsageError

from .series import Series

PREFIX: Final = "hotlap"


@dataclass(frozen=True)
class Target:
    """A tool that a run can be exported to. suffix: of the file that it writes, "" for a folder. write: writes a run
    to a path and returns lines that say how to open it. online: may it use the network, where the user asks for it."""

    name: str
    meaning: str
    suffix: str
    write: Callable[[Series, Path], list[str]]
    online: Callable[[Series, Path], list[str]] | None = None


def load(module: str, package: str, extra: str) -> ModuleType:
    """An optional library. Raises UsageError that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise UsageError(f"{package} is installed, but does not load: {error}") from error
        raise UsageError(f"this needs {package}: pip install 'hotlap[{extra}]'") from None
