"""Where a series changed, and whether it drifts.

Change points are those of Apache Otava (E-divisive means, each split tested by Student's t). Of it only
`otava.analysis` is used, which imports numpy and scipy; its pins are for the rest. On top of that, so that an alarm is
rare: a change is told once there are `LEAST_RUNS` runs on both sides of it, and steps are not told where one steady
slope says it better.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from hotlap.diagnose.compare import differences
from hotlap.launch.environment import commits_between
from hotlap.records.errors import PackageMissing
from hotlap.records.history import ChangePoint, Drift, Entry, Level, Trend

MEASURES: Final[Mapping[str, Callable[[Entry], float | None]]] = {
    "step": lambda entry: entry.step_ms,
    "data": lambda entry: entry.phases.data,
    "memory": lambda entry: entry.peak_bytes,
    "startup": lambda entry: entry.startup_s,
}
"""What is followed: ms of a step, ms of it that wait for data, bytes at the peak, seconds to the first step's end."""
MOST_P: Final = 0.0001
"""Of a split by chance. Otava's own 0.001 is passed by one in thirty series of 100 runs without a change."""
THRESHOLD: Final = 0.05
"""Of the value, below which a change is none, and a slope is a drift."""
LEAST_RUNS: Final = 3
LEAST_COMMITS: Final = 10
"""That a slope rests on."""
LEAST_DRIFT: Final = 0.02
"""Over all commits."""
CONFIDENCE: Final = 0.99
MOST_COMMITS: Final = 5
Values = Sequence[float]


def trend(measure: str, entries: Sequence[Entry], threshold: float = THRESHOLD, here: Path | None = None) -> Trend:
    """Runs of a series by one measure, in any order. here: a folder whose repository names the commits.

    Raises PackageMissing without apache-otava."""
    of = MEASURES[measure]
    kept = sorted((one for one in entries if _number(of(one))), key=lambda one: one.order)
    values = [float(of(one) or 0.0) for one in kept]
    found = split(values, threshold)
    commits = [one.commit for one in kept]
    if found and _line_fits_better(values, found):
        found = []
    bounds = [0, *found, len(values)]
    segments = [_segment(values, first, end) for first, end in pairwise(bounds) if end > first]
    return Trend(
        measure=measure,
        ids=tuple(one.id for one in kept),
        times=tuple(one.started for one in kept),
        values=tuple(values),
        commits=tuple(commits),
        segments=tuple(segments),
        changes=tuple(_change(kept, values, before, after, here) for before, after in pairwise(segments)),
        drift=_drift(values[bounds[-2] :], commits[bounds[-2] :]) if values else None,
    )


def split(values: Values, threshold: float = THRESHOLD) -> list[int]:
    """The places at which the values change by the threshold and more, and stay changed."""
    try:
        from otava.analysis import compute_change_points
    except ModuleNotFoundError as error:
        raise PackageMissing(
            "change points need apache-otava: pip install --no-deps apache-otava (what else it asks for is not used)"
        ) from error
    if len(values) < 2 * LEAST_RUNS:
        return []
    # One window over all: of two, otava 0.8 splits twice where both find the same place, and fails.
    points, _ = compute_change_points(
        np.array(values), window_len=2 * len(values), max_pvalue=MOST_P, min_magnitude=math.log1p(threshold)
    )
    found = [int(point.index) for point in points]
    while found and (few := _fewest(found, len(values))) is not None:
        found.remove(few)
    return [at for at in found if _size(values, found, at) >= math.log1p(threshold)]


def _number(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value >= 0


def _fewest(found: Sequence[int], end: int) -> int | None:
    """The change that has the fewest runs on one of its sides, where those are too few to be told."""
    lengths = [
        (min(at - before, after - at), at)
        for before, at, after in zip([0, *found[:-1]], found, [*found[1:], end], strict=True)
    ]
    least, at = min(lengths)
    return at if least < LEAST_RUNS else None


def _size(values: Values, found: Sequence[int], at: int) -> float:
    """How large a change is, as a logarithm."""
    bounds = [0, *found, len(values)]
    place = bounds.index(at)
    before, after = (float(np.mean(values[a:b])) for a, b in pairwise(bounds[place - 1 : place + 2]))
    return abs(math.log(after / before)) if before > 0 and after > 0 else math.inf if before != after else 0.0


def _line_fits_better(values: Values, found: Sequence[int]) -> bool:
    """Whether one slope tells the values better than the steps do, for the numbers that each takes (BIC)."""
    at, y = np.arange(len(values)), np.array(values)
    line = y - np.polyval(np.polyfit(at, y, 1), at)
    steps = np.concatenate([y[a:b] - y[a:b].mean() for a, b in pairwise([0, *found, len(values)])])

    def worth(rest: Any, numbers: int) -> float:
        return len(y) * math.log(max(float(rest @ rest) / len(y), 1e-300)) + numbers * math.log(len(y))

    return worth(line, 2) < worth(steps, 2 * len(found) + 1)


def _segment(values: Values, first: int, end: int) -> Level:
    from scipy import stats

    own = np.array(values[first:end])
    middle = float(own.mean())
    if len(own) == 1:
        return Level(first=first, last=first, middle=middle)
    half = float(stats.t.ppf(0.975, len(own) - 1) * own.std(ddof=1) / math.sqrt(len(own)))
    return Level(first=first, last=end - 1, middle=middle, low=middle - half, high=middle + half)


def _change(entries: Sequence[Entry], values: Values, before: Level, after: Level, here: Path | None) -> ChangePoint:
    from scipy import stats

    left, right = entries[before.last], entries[after.first]
    one, two = values[before.first : before.last + 1], values[after.first : after.last + 1]
    same = len({*one}) == len({*two}) == 1
    p = 0.0 if same else float(stats.ttest_ind(one, two, equal_var=False).pvalue)
    between: list[str] = []
    if here is not None and left.commit and right.commit:
        between = commits_between(here, left.commit, right.commit, MOST_COMMITS)
    also = (diff for diff in differences(left.run(), right.run())[0] if diff.what != "git commit")
    return ChangePoint(
        at=after.first,
        before=before.middle,
        after=after.middle,
        ratio=after.middle / before.middle if before.middle > 0 else math.inf,
        p=p,
        commit_before=left.commit,
        commit_after=right.commit,
        commits=tuple(between),
        also=tuple(also),
    )


def _drift(values: Values, commits: Sequence[str | None]) -> Drift | None:
    """A slope over the commits, each by the median of its runs; None where chance explains it, or it is small."""
    from scipy import stats

    by: dict[str, list[float]] = {}
    for value, commit in zip(values, commits, strict=True):
        if commit is not None and value > 0:
            by.setdefault(commit, []).append(value)
    if len(by) < LEAST_COMMITS:
        return None
    logs = [math.log(median(own)) for own in by.values()]
    slope, _, low, high = stats.theilslopes(logs, alpha=CONFIDENCE)
    wider = _wider(np.array(logs) - slope * np.arange(len(logs)))
    low, high = slope - wider * (slope - low), slope + wider * (high - slope)
    total = slope * (len(logs) - 1)
    if low <= 0 <= high or abs(total) < math.log1p(LEAST_DRIFT):
        return None
    ratio, least, most = (math.exp(float(one)) for one in (slope, low, high))
    return Drift(ratio=ratio, low=least, high=most, total=math.exp(float(total)), commits=len(logs))


def _wider(rest: Any) -> float:
    """By how much neighbours that are alike widen an interval: as many runs tell less (first-order autocorrelation)."""
    rest = rest - rest.mean()
    alike = float(rest[1:] @ rest[:-1] / max(float(rest @ rest), 1e-300)) + 1 / len(
        rest
    )  # which is what it is short of
    alike = min(max(alike, 0.0), 0.9)
    return math.sqrt((1 + alike) / (1 - alike))
