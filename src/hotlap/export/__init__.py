"""Floor 5: a run in the formats of other tools. Computes nothing: the numbers are those of steps.jsonl and
diagnosis.json, under one set of names (`series.py`).

A target is one module here with `TARGET`; it imports its library late, and says which extra of hotlap brings it.
"""

import importlib
import pkgutil
from functools import cache

from ._base import Target


@cache
def all_targets() -> dict[str, Target]:
    """Every target by its name, in name order."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("to_"))
    made: list[Target] = [importlib.import_module(f"{__name__}.{name}").TARGET for name in names]
    return {target.name: target for target in made}


__all__ = ["Target", "all_targets"]
