"""Where steady state begins, and which of the steps since then count. Standard library only: the agent (online) and the
readers use these rules.

Warm-up is recognised from the steps themselves. Step `s` begins the steady state when none of the next `window` steps
compiled anything or was probed, and their median time agrees with the median of as many steps, an even number of steps
later, within 25% either way: a checkpoint in every second step, say, is then in both as often. A loader that had
batches in flight is given that many steps first, because they were made before the loop's own pace was known; where
workers do not keep up, more of them are used up until one has to be waited for, and it is the steps from then on that
show the pace (`own_pace`). If no such step is found within `GIVE_UP` steps the second half is taken and the result
says that it is unsteady.
"""

from collections.abc import Sequence
from itertools import compress
from statistics import fmean, median
from typing import Final, NamedTuple

WINDOW: Final = 5
LONG_STEP_MS: Final = 1000.0
WINDOW_LONG: Final = 2
AGREE: Final = 1.25
GIVE_UP: Final = 60
STALL: Final = 3.0
FAR_LONGER: Final = 3.0, 100.0
"""Times what a step takes in the median, and ms: from both on a step is the exception, and looked at by itself."""


class Steady(NamedTuple):
    """The first steady step (an index into the list) and whether the rule really held there."""

    start: int
    settled: bool


def window_of(walls: Sequence[float]) -> int:
    """Steps a median is taken over: fewer where a step takes seconds."""
    return WINDOW_LONG if walls and median(walls[-WINDOW:]) >= LONG_STEP_MS else WINDOW


def steady_start(walls: Sequence[float], disturbed: Sequence[bool], in_flight: int = 0) -> Steady | None:
    """Find the first steady step.

    walls: step times, ms. disturbed: whether the step compiled or was probed. in_flight: batches a loader makes ahead.
    Returns None while there are too few steps to tell.
    """
    width = window_of(walls)
    later = width + width % 2
    start = max(1, min(in_flight, GIVE_UP // 2))
    while start + later + width <= len(walls):
        if any(disturbed[start : start + width]):
            start += 1
            continue
        first, second = (median(walls[at : at + width]) for at in (start, start + later))
        if second > 0 and 1 / AGREE <= first / second <= AGREE:
            return Steady(_after_stalls(walls, start, width, STALL * first), True)
        if start >= GIVE_UP:
            return Steady(start, False)
        start += 1
    return None


def own_pace(
    walls: Sequence[float], disturbed: Sequence[bool], starved: Sequence[bool], start: int, in_flight: int
) -> int:
    """The first step, from `start` on, whose time owes nothing to batches that workers had made before.

    Batches that are there let a loop run faster than its workers can, until they are used up. That is at the first
    starved step, if the steps after it, a turn of the workers at least, take longer by more than 25% in the mean
    (workers deliver in bursts, of which a median shows one part). Else it is `start`: the loop is no faster than they
    are, or none was starved. starved: as in `records.run.Step`.
    """
    first = next((at for at in range(start, len(walls)) if starved[at]), len(walls))
    if first == start or first + 1 + least_tail(in_flight) > len(walls):
        return start
    before, after = _mean(walls, disturbed, start, first), _mean(walls, disturbed, first + 1, len(walls))
    return first + 1 if after > AGREE * before else start


def least_tail(in_flight: int) -> int:
    """Steps after a starved one that show the pace of the workers: each of them delivers one, at the usual two batches
    ahead for each."""
    return max(2 * WINDOW, in_flight // 2)


def counted(
    disturbed: Sequence[bool], evaluating: Sequence[bool], looked_at: Sequence[bool] | None = None
) -> list[bool]:
    """Of each step from the first steady one on, whether numbers rest on it: not where it compiled or was probed
    (disturbed), nor where an evaluation ran inside.

    Where most steps hold an evaluation, it is part of the loop and they stay: a teacher's forward, say. One in every
    second step is not in most: whether these are one more than the others hangs on where the steps begin and end, and
    what is compared must not. looked_at: of steps that were only timed it is not known whether a forward without
    gradients ran inside, so those that were looked at decide; None: all were.
    """
    deciding = evaluating if looked_at is None else list(compress(evaluating, looked_at)) or evaluating
    others = len(deciding) - sum(deciding)
    part_of_loop = sum(deciding) > others + 1
    return [not d and (part_of_loop or not e) for d, e in zip(disturbed, evaluating, strict=True)]


def _mean(walls: Sequence[float], disturbed: Sequence[bool], start: int, end: int) -> float:
    return fmean([walls[at] for at in range(start, end) if not disturbed[at]] or [0.0])


def _after_stalls(walls: Sequence[float], start: int, width: int, most: float) -> int:
    """The first of the next steps that is no stall; a window that agrees with the next has at least one."""
    return next((at for at in range(start, start + width) if walls[at] <= most), start)
