"""When a slowdown is shown, when it is ruled out, and what a check says of both.

Starts of one command differ, so the unit is the process: Student's t with the pooled variance of both versions, as in
`experiment.statistics`, looked at after 3, 4, 5, 6, 8, 10, 12, 14 and 16 starts of each. Of no change a look shows a
slowdown with a chance of `SHOWN`, and it has to be shown again by fresh starts. Since starts may come in kinds (one in
two is 4% slower, say), of which a few of each can look alike, ranks have to show it too (Mann, Whitney 1947): of 3 and
3 all of the new version have to be slower, which chance makes in one of 20 whatever the distribution.
`benchmarks/check_rates.py` simulates all of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from hotlap.experiment.statistics import LEVEL, Effect
from hotlap.records.check import Call
from hotlap.records.tune import Interval

STARTS: Final = (3, 4, 5, 6, 8, 10, 12, 14, 16)
"""Of each version, by look: two more at most, as so many processes are alive at once (`attempt.MOST_ALIVE`)."""
SHOWN: Final = 0.005
"""Chance that one look shows what is not there."""
RULED_OUT: Final = 0.01
"""Chance that one look rules out what is there."""
RANKS: Final = 0.05
SIZEABLE: Final = 2 / 3
"""Of the limit, that what is shown has to be: a change that is clear and small is none that counts."""


@dataclass(frozen=True)
class Told:
    """Of one quantity. change: of the new version over the baseline, as a logarithm or in other units that add up; low,
    high: 95%."""

    change: float
    low: float
    high: float
    call: Call


def told(base: Sequence[Effect], head: Sequence[Effect], limit: float) -> Told:
    """Of starts that took turns, or of what each start tells by itself. limit: in the same unit."""
    change = fmean(one.log for one in head) - fmean(one.log for one in base)
    free = len(base) + len(head) - 2
    if free < 1:
        return Told(change, -math.inf, math.inf, "open")
    squares = sum((one.log - fmean(o.log for o in side)) ** 2 for side in (base, head) for one in side)
    left_open = fmean(one.error**2 for one in (*base, *head))
    error = math.sqrt(max(squares / free, left_open) * (1 / len(base) + 1 / len(head)))
    return _judged(change, error, free, limit, _ranks([one.log for one in base], [one.log for one in head]))


def told_of_pairs(logs: Sequence[float], limit: float) -> Told:
    """Of log ratios, the new version over the baseline, by pair of runs that did not run at once."""
    change, free = fmean(logs), len(logs) - 1
    if free < 1:
        return Told(change, -math.inf, math.inf, "open")
    squares = sum((one - change) ** 2 for one in logs)
    return _judged(
        change, math.sqrt(squares / free / len(logs)), free, limit, 0.5 ** len(logs) if min(logs) > 0 else 1.0
    )


def _judged(change: float, error: float, free: int, limit: float, luck: float) -> Told:
    """luck: chance of such ranks, or better ones, where nothing differs."""
    from scipy import stats  # it takes longer to import than hotlap does

    half = float(stats.t.ppf((1 + LEVEL) / 2, free)) * error
    call: Call = "open"
    if change + float(stats.t.ppf(1 - RULED_OUT, free)) * error < limit:
        call = "within"
    elif change >= SIZEABLE * limit and change > float(stats.t.ppf(1 - SHOWN, free)) * error and luck < RANKS + 1e-9:
        call = "slower"
    return Told(change, change - half, change + half, call)


def _ranks(base: Sequence[float], head: Sequence[float]) -> float:
    """Chance that ranks of the new version are as high as these or higher, where nothing differs."""
    from scipy import stats

    if max(*base, *head) == min(*base, *head):
        return 1.0
    return float(stats.mannwhitneyu(head, base, alternative="greater", method="exact").pvalue)


def as_interval(found: Told, logs: bool) -> Interval | None:
    """Of the change as a fraction; None where it is not known."""
    if not math.isfinite(found.low):
        return None
    return Interval(low=fraction(found.low, logs), high=fraction(found.high, logs))


def fraction(change: float, logs: bool) -> float:
    """A change as a fraction. logs: it is a logarithm."""
    return math.expm1(change) if logs else change
