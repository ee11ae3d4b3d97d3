"""Installed packages that the process has imported, as folder and first name: which versions these are, hotlap asks
afterwards (`launch/packages.py`)."""

import sys
from types import ModuleType
from typing import Final

from hotlap.records.whose import INSTALLED

MOST: Final = 2000
ATTRIBUTES: Final = vars(ModuleType)["__dict__"].__get__
"""Of a module, without asking it, which a lazy one acts on."""


def imported() -> dict[str, list[str]]:
    """By folder of installed packages the first names of what was imported from it."""
    found: dict[str, set[str]] = {}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or type(name) is not str:
            continue
        file = ATTRIBUTES(module).get("__file__")
        if type(file) is not str:
            continue
        for mark in INSTALLED:
            folder, here, _ = file.partition(mark)
            if here:
                found.setdefault(folder + mark[:-1], set()).add(name.partition(".")[0])
    return {folder: sorted(names)[:MOST] for folder, names in found.items()}
