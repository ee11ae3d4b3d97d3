"""Floor 3: the levers, one file each in the folder of its family, found by listing. `_base.Lever` says what one is.

A lever's module is imported in the user's process as well: module level imports the standard library only.
"""

import importlib
import pkgutil
from collections.abc import Collection, Iterable
from functools import cache
from typing import TYPE_CHECKING

from ._base import Cause, Lever

if TYPE_CHECKING:
    from hotlap.records.run import Facts
    from hotlap.records.run import Lever as Use


@cache
def all_levers() -> dict[str, Lever]:
    """Every lever by name, in name order."""
    levers = (importlib.import_module(module).LEVER for module in modules().values())
    return dict(sorted((lever.name, lever) for lever in levers))


@cache
def modules() -> dict[str, str]:
    """The module of every lever, by name. None is imported."""
    found = {}
    for family in pkgutil.iter_modules(__path__):
        for module in pkgutil.iter_modules([f"{__path__[0]}/{family.name}"] if family.ispkg else []):
            if not module.name.startswith("_"):
                found[module.name.replace("_", "-")] = f"{__name__}.{family.name}.{module.name}"
    return found


def known(names: Iterable[str]) -> list[Lever]:
    """The levers of these names; parity's own and planted ones are no levers of the user's."""
    return [all_levers()[name] for name in names if name in all_levers()]


def answering(*causes: Cause) -> tuple[str, ...]:
    """Names of the levers that answer causes: those of the first cause first, the most promising of each before."""
    found = [
        name
        for cause in causes
        for _, name in sorted((one.causes[cause], one.name) for one in all_levers().values() if cause in one.causes)
    ]
    return tuple(dict.fromkeys(found))


def settled(facts: "Facts | None", active: Collection[str] = ()) -> frozenset[str]:
    """Names of the levers that no finding should name: those that are in (`active`), and those that what was seen of
    the script rules out (`Lever.settled`)."""
    out = () if facts is None else (one.name for one in all_levers().values() if one.settled(facts, active))
    return frozenset((*active, *out))


def variables_of(levers: "Iterable[Use]") -> dict[str, str]:
    """The environment variables that levers need before the command starts."""
    variables: dict[str, str] = {}
    for lever in levers:
        for one in known([lever.name]):
            variables.update(one.environment(lever.settings))
    return variables
