"""Ratios of step times and their intervals.

Three kinds of evidence, each with its own unit:

* Within one process: cycles in which each variant had a block of steps. The ratio is the Hodges-Lehmann estimate of the
  cycles' log ratios (the median of all means of two), its interval that of Wilcoxon's signed-rank test (Hollander,
  Wolfe, Chicken: Nonparametric Statistical Methods, 3.1-3.3). One slow cycle moves neither.
* Processes that take turns: each has an effect, its log step time over what is usual in the same rounds (Tukey's median
  polish: Hoaglin, Mosteller, Tukey, Understanding Robust and Exploratory Data Analysis, chapter 6). Processes of one
  command differ from start to start, so the unit is the process: a two-sample t interval over the effects, with their
  pooled variance, or what the turns themselves leave open where that is more.
* Processes one after another: the log ratios of pairs, Student's t.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from hotlap.records.tune import Interval

LEVEL: Final = 0.95
LOOKS: Final = (0.001, 0.002, 0.003, 0.004)
"""How likely a look at what is no gain may take it for one; there are no more looks than these, so 1% in all."""
SWEEPS: Final = 6
"""Of the median polish: it hardly changes after three, or where half of a round's sides are new five."""
LARGE: Final = 1.2
"""A gain for which the last look that the budget allows has the levels of all that were still to come. Smaller ones may
be two kinds of starts, which few of each do not tell apart."""
LEAST_GAIN: Final = 1.02
"""A gain that is less than this is none, however sure."""


@dataclass(frozen=True)
class Effect:
    """Of a process: its log step time over what is usual, and the standard error that its turns leave."""

    log: float
    error: float = 0.0


@dataclass(frozen=True)
class Ratio:
    """Step time before over after: above 1 is faster. interval: 95%. proved: by the rule of `LOOKS`."""

    ratio: float
    interval: Interval | None
    proved: bool = False


def center(logs: Sequence[float]) -> float:
    """Hodges-Lehmann estimate: the median of the means of all pairs, each with itself too."""
    return float(np.median(_means(logs)))


def bounds(logs: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """The signed-rank interval of `center`; infinite where there are too few values for the level."""
    out = _rank_quantile(len(logs), (1 - level) / 2)
    if out < 1:
        return -math.inf, math.inf
    means = np.sort(_means(logs))
    return float(means[out - 1]), float(means[-out])


def _means(logs: Sequence[float]) -> np.ndarray:
    """Of all pairs, each with itself too."""
    values = np.asarray(logs, dtype=float)
    rows, columns = np.triu_indices(len(values))
    means: np.ndarray = (values[rows] + values[columns]) / 2
    return means


def _rank_quantile(count: int, tail: float) -> int:
    """The largest k with P(W < k) <= tail, of the signed-rank statistic W of so many values."""
    ways = np.ones(1)
    for rank in range(1, count + 1):
        wider = np.zeros(len(ways) + rank)
        wider[: len(ways)] += ways
        wider[rank:] += ways
        ways = wider / 2
    return int(np.searchsorted(np.cumsum(ways), tail, side="right"))


def within_process(logs: Sequence[float]) -> Ratio:
    """Of log ratios by cycle, one variant's block over another's in the same process."""
    low, high = bounds(logs)
    interval = Interval(low=math.exp(low), high=math.exp(high)) if math.isfinite(low) else None
    return Ratio(math.exp(center(logs)), interval)


def effects(rounds: Sequence[Mapping[int, float]]) -> dict[int, Effect]:
    """The effect of each process, from ms a step by process in each round. Not all need to have turns in all rounds;
    but one of those in each round has to have turns in another one too, else rounds can't be told from processes."""
    sides = sorted({side for turns in rounds for side in turns})
    logs = np.array([[math.log(turns[side]) if side in turns else np.nan for side in sides] for turns in rounds])
    if not sides:
        return {}
    median = np.nanmedian if np.isnan(logs).any() else np.median
    usual = _begun(logs)
    for _ in range(SWEEPS):
        speed = median(logs - usual, axis=1, keepdims=True)
        usual = median(logs - speed, axis=0)
    found = {}
    for at, side in enumerate(sides):
        own = (logs - speed)[:, at]
        own = own[~np.isnan(own)].tolist()
        low, high = bounds(own, 0.68)
        spread = (high - low) / 2 if math.isfinite(low) else (max(own) - min(own)) / 2
        beside = float(np.mean([len(turns) for turns in rounds if side in turns]))
        found[side] = Effect(center(own), spread * math.sqrt(beside / max(1.0, beside - 1)))
    return found


def _begun(logs: np.ndarray) -> np.ndarray:
    """Where the polish begins, by side: of the first round of each, beside those that were there before. From zeros it
    does not get there where half of a round are new: its median lies between what these and the others tell."""
    usual = np.full(logs.shape[1], np.nan)
    for turns in logs:
        new = np.isnan(usual) & ~np.isnan(turns)
        known = ~np.isnan(turns - usual)
        usual[new] = turns[new] - np.median((turns - usual)[known] if known.any() else turns[new])
    return usual


def between_processes(
    before: Sequence[Effect], after: Sequence[Effect], look: int = 0, last: bool = False, first: bool = False
) -> Ratio:
    """Of the processes of two sides that took turns. look: which, for the rule that proves; last: no time is left for
    another one; first: there were none before, whose levels it has.

    Without an interval where each side has but one process.
    """
    ratio = math.exp(fmean(one.log for one in before) - fmean(one.log for one in after))
    free = len(before) + len(after) - 2
    if free < 1:
        return Ratio(ratio, None)
    squares = sum((one.log - fmean(o.log for o in side)) ** 2 for side in (before, after) for one in side)
    left_open = fmean(one.error**2 for one in (*before, *after))
    error = math.sqrt(max(squares / free, left_open) * (1 / len(before) + 1 / len(after)))
    return _by_t(ratio, error, free, look, last, first)


def of_pairs(logs: Sequence[float], look: int = 0, last: bool = False) -> Ratio:
    """Of log ratios by pair of processes that did not run at once."""
    ratio, free = math.exp(fmean(logs)), len(logs) - 1
    if free < 1:
        return Ratio(ratio, None)
    squares = sum((one - fmean(logs)) ** 2 for one in logs)
    return _by_t(ratio, math.sqrt(squares / free / len(logs)), free, look, last)


def _by_t(ratio: float, error: float, free: int, look: int, last: bool, first: bool = False) -> Ratio:
    from scipy import stats  # two thirds of the time that `hotlap run` takes to start, were it imported above

    half = float(stats.t.ppf((1 + LEVEL) / 2, free)) * error
    interval = Interval(low=ratio * math.exp(-half), high=ratio * math.exp(half))
    alpha = sum(LOOKS[0 if first else look : None if last and ratio >= LARGE else look + 1])
    sure = alpha > 0 and math.log(ratio) > float(stats.t.ppf(1 - alpha, free)) * error
    return Ratio(ratio, interval, sure and ratio >= LEAST_GAIN)


def half_width(interval: Interval) -> float:
    """Half the width of an interval of a ratio, as a fraction."""
    return math.sqrt(interval.high / interval.low) - 1
