"""Ratios of step times and their intervals."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

from hotlap.records.tune import Interval

NARROW: Final = (0.03, 0.1)
"""An interval is narrow where its half-width is below 3%, or below a tenth of the ratio's logarithm."""


def ratio_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, Interval]:
    """Geometric mean of before/after over pairs, with its 95% interval (Student's t on the logarithms).

    The unit is one process run's step time; pairs come from one session in ABBA order, so that slow drift cancels.
    Needs two pairs at least. Raises ValueError otherwise, or for times that are not positive.
    """
    from scipy import stats  # two thirds of the time that `hotlap run` takes to start, were it imported above

    if len(before) != len(after) or len(before) < 2:
        raise ValueError(f"need at least two pairs, got {len(before)} and {len(after)} runs")
    logs = [math.log(a / b) for a, b in zip(before, after, strict=True)]
    middle = fmean(logs)
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), Interval(low=math.exp(middle - half), high=math.exp(middle + half))


def half_width(interval: Interval) -> float:
    """Half the width of an interval of a ratio, as a fraction."""
    return math.sqrt(interval.high / interval.low) - 1


def narrow(ratio: float, interval: Interval) -> bool:
    """Whether another pair would tell the user nothing: by the width, whatever the direction of the change."""
    return half_width(interval) < max(NARROW[0], NARROW[1] * abs(math.log(ratio)))


def abba(pairs: int) -> str:
    """The order of runs of `pairs` pairs: ABBAABBA..."""
    return "".join("AB" if pair % 2 == 0 else "BA" for pair in range(pairs))
