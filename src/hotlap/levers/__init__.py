"""Floor 3: the levers, one file each, found by listing this folder. `_base.Lever` says what a lever is.

A lever's module is imported in the user's process as well: module level imports the standard library only.
"""

import importlib
import pkgutil
from functools import cache

from ._base import Lever


@cache
def all_levers() -> dict[str, Lever]:
    """Every lever by name, in name order."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            lever = importlib.import_module(f"{__name__}.{module.name}").LEVER
            found[lever.name] = lever
    return dict(sorted(found.items()))
