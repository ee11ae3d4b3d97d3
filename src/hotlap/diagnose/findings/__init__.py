"""Causes, one file each. A file defines `find(measured) -> Finding | None`; all of them are run. `REPLACES` in it: ids
of findings that say less of the same time. What says how much it costs, and that is next to nothing, is not told."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType

import msgspec

from hotlap.records.diagnosis import IN_NO_PHASE, Finding, left_beside

from . import long_steps
from ._base import LEAST_COST, Measured

Find = Callable[[Measured], Finding | None]


@cache
def all_findings() -> dict[str, Find]:
    """Every finding's function by its name, in name order."""
    return {name: module.find for name, module in _modules().items()}


@cache
def _modules() -> dict[str, ModuleType]:
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def findings_of(measured: Measured) -> list[Finding]:
    """What the time of one rank is lost to."""
    found = [finding for find in all_findings().values() if (finding := find(measured)) is not None]
    gone = replaced(found) | long_steps.explained(found, measured)
    found = [finding for finding in found if finding.id not in gone]
    least = LEAST_COST * measured.step_ms
    return _of_the_rest([finding for finding in found if finding.cost_ms is None or finding.cost_ms >= least])


def replaced(found: Sequence[Finding]) -> set[str]:
    """Ids of findings that say less of the same time."""
    return {id_ for one in found for id_ in getattr(_modules().get(one.id.replace("-", "_")), "REPLACES", ())}


def _of_the_rest(found: Sequence[Finding]) -> list[Finding]:
    """What these take is not among the time that the others are shares of."""
    rest = left_beside(found)
    return [one if one.id in IN_NO_PHASE else msgspec.structs.replace(one, share=rest * one.share) for one in found]
