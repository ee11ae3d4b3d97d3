"""What an earlier session of a tune found, so that a resumed one does not begin anew.

The set that was kept, or measured and not yet proved, is tried first and at once. Levers that crashed, hung, ran out of
memory, failed parity or were slower are not tried again. Speed-up and parity are measured anew.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hotlap.records.run import Lever
from hotlap.records.tune import Dropped, Trial, Tune

CLEARLY_SLOWER: Final = 0.98


@dataclass(frozen=True)
class Remembered:
    """What is tried first, and what is not tried again."""

    kept: tuple[Lever, ...] = ()
    failed: tuple[Dropped, ...] = ()


def of_earlier(tune: Tune) -> Remembered:
    """What a session found. What its noise could have made slower is not remembered as slower."""
    kept = tuple(Lever(name=one.lever, settings=one.settings) for one in tune.kept)
    names = {lever.name for lever in kept}
    slower = min(CLEARLY_SLOWER, math.exp(-2 * (tune.noise or 0.0)))
    failed = (one for one in tune.dropped if one.lever not in names and _hopeless(one, tune.trials, slower))
    return Remembered(tune.unproved.levers if tune.unproved is not None else kept, tuple(failed))


def _hopeless(one: Dropped, trials: Sequence[Trial], slower: float) -> bool:
    """Whether a lever was tried and failed, or was clearly slower."""
    if one.remembered:
        return False
    if one.ratio is not None and one.ratio < slower:
        return True
    wrong = ("crashed", "timeout", "memory", "refused", "too few steps", "parity", "exit code", "signal")
    tried = one.trial is not None or any(one.lever in {x.name for x in trial.requested} for trial in trials)
    return one.why.startswith(wrong) and tried
