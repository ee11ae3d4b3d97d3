"""Pairs of runs that an earlier session's confirmation made: what they say still holds, whatever time has passed.

A pair is of one session, its two runs one after the other on one machine, so that its ratio needs no other session's
runs. A run that lost its partner, since the budget ended between them, says nothing.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

from hotlap.records.errors import RecordError
from hotlap.records.files import read_run
from hotlap.records.run import Lever
from hotlap.records.tune import Trial

from .budget import FEWEST_PAIRS
from .candidates import LEAST_GAIN
from .statistics import ratio_interval
from .trials import Trials, same_levers

Pair = tuple[Trial, Trial]


def earlier_pairs(trials: Trials, bare: Sequence[Lever], levers: Sequence[Lever]) -> list[Pair]:
    """(bare command, recipe) pairs of earlier sessions on this machine, as it is now. A run whose first steps had a
    lever that left is in none."""
    whole = [one for one in trials.confirmed if not any(out.was_in for out in one.left_out)]
    usable = [trial for trial in whole if trial.outcome == "measured" and _made_here(trials, trial)]
    found: list[Pair] = []
    for _, runs in groupby(usable, key=lambda trial: trial.session):
        found += _paired(list(runs), bare, levers)
    return found


def _paired(runs: Sequence[Trial], bare: Sequence[Lever], levers: Sequence[Lever]) -> list[Pair]:
    """Neighbours, each in one pair at most, as ABBA has them."""
    found: list[Pair] = []
    at = 0
    while at + 1 < len(runs):
        one, two = runs[at], runs[at + 1]
        for before, after in ((one, two), (two, one)):
            if same_levers(before.levers, bare) and same_levers(after.levers, levers):
                found.append((before, after))
                at += 1
                break
        at += 1
    return found


def _made_here(trials: Trials, trial: Trial) -> bool:
    """Whether it ran on this machine, with the same versions, variables and commit."""
    try:
        return read_run(trials.plan.folder / trial.folder).environment == trials.plan.environment
    except RecordError:
        return False


def left_unproved(
    trials: Trials, bare: Sequence[Lever], value: Callable[[Trial], float], memory: bool
) -> tuple[Lever, ...] | None:
    """The levers of the last session's confirmation, where each of its pairs showed a gain and they were too few.

    value: what is to be small, of a trial. memory: that is memory, which needs no interval.
    """
    last = max((trial.session for trial in trials.confirmed), default=None)
    sets = [trial.levers for trial in trials.confirmed if trial.session == last and not same_levers(trial.levers, bare)]
    pairs = earlier_pairs(trials, bare, sets[-1]) if sets else []
    before, after = [value(one) for one, _ in pairs], [value(two) for _, two in pairs]
    if not all_gain(before, after):
        return None
    few = len(pairs) < FEWEST_PAIRS or (not memory and ratio_interval(before, after)[1].low <= 1)
    return sets[-1] if few else None


def done_without(trials: Trials) -> list[Trial]:
    """Runs of the last session's confirmation that some levers left themselves out of, on this machine."""
    last = max((trial.session for trial in trials.confirmed), default=None)
    return [one for one in trials.confirmed if one.session == last and one.left_out and _made_here(trials, one)]


def all_gain(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether there are pairs and each shows a gain."""
    return bool(before) and all(a >= LEAST_GAIN * b for a, b in zip(before, after, strict=True))
