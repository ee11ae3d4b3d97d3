"""How each lever is written into source: one module a lever, with the lever's name, found by listing this folder."""

import importlib
import pkgutil
from functools import cache

from ._base import Rule


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by its lever's name, in the order in which they are applied."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    found = {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}").RULE for name in names}
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))
