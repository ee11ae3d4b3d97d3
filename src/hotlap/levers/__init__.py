"""Floor 3: the levers, one file each, found by listing this folder. `_base.Lever` says what a lever is.

A lever's module is imported in the user's process as well: module level imports the standard library only.
"""

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from ._base import Lever

if TYPE_CHECKING:
    from hotlap.records.run import Lever as Use


@cache
def all_levers() -> dict[str, Lever]:
    """Every lever by name, in name order."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            lever = importlib.import_module(f"{__name__}.{module.name}").LEVER
            found[lever.name] = lever
    return dict(sorted(found.items()))


def variables_of(levers: "Iterable[Use]") -> dict[str, str]:
    """The environment variables that levers need before the command starts."""
    variables: dict[str, str] = {}
    for lever in levers:
        known = all_levers().get(lever.name)  # parity's own and planted ones are no levers of the user's
        if known is not None:
            variables.update(known.environment(lever.settings))
    return variables
