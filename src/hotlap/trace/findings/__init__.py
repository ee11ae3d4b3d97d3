"""Causes that a trace shows, one file each. A file defines `find(answers) -> list[Finding]`; all of them are run.

`share` is what the cause takes of the step, `cost_ms` what of that a step could win back, None where that is not known.
Idle time is divided by `analyses/gaps.py`, so no two findings claim the same of it.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from hotlap.records.diagnosis import Finding
from hotlap.records.trace import RankTrace

from ..scaling import at_most_the_step

Find = Callable[[RankTrace], list[Finding]]
LEAST_SHARE = 0.005


@cache
def all_findings() -> dict[str, Find]:
    """Every finding's function by its name, in name order."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return {name: importlib.import_module(f"{__name__}.{name}").find for name in names}


def findings_of(answers: RankTrace) -> tuple[Finding, ...]:
    """What one rank's time is lost to, dearest first."""
    found = [at_most_the_step(answers, finding) for find in all_findings().values() for finding in find(answers)]
    kept = [finding for finding in found if finding.share >= LEAST_SHARE]
    return tuple(sorted(kept, key=lambda finding: (-(finding.cost_ms or 0.0), -finding.share)))
