"""The steps of a run one by one, each with what it counts as, in as many points as a page can draw."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from hotlap.records.page import Mark, RankSteps
from hotlap.records.run import Step

from .diagnose import Rank, read_ranks
from .steps import SteadySteps, mean_phases, of_mode, on_clock

FENCE: Final = 3.0
"""Interquartile ranges beyond a quartile: Tukey's outer fence ("far out", Exploratory Data Analysis, 1977)."""
LEAST: Final = 0.05
"""Of the median: nearer to it nothing is an outlier, however even the other steps are."""


def series(folder: Path, most: int) -> tuple[RankSteps, ...]:
    """The steps of each rank, at most about `most` of each. Raises RecordError."""
    return tuple(_of_rank(index, rank, most) for index, rank in enumerate(read_ranks(folder)))


def _of_rank(index: int, rank: Rank, most: int) -> RankSteps:
    """Without the steps of which the clock that counts is not known."""
    _, every_step = of_mode(rank.steps)
    clock = rank.steady.clock
    on_it = [on_clock(step, clock) for step in every_step]
    every_mark = marked(every_step, on_it, rank.steady)
    times = [ms for ms in on_it if ms is not None]
    steps = [step for step, ms in zip(every_step, on_it, strict=True) if ms is not None]
    marks = [mark for mark, ms in zip(every_mark, on_it, strict=True) if ms is not None]
    every, kept = thinned(times, most, [step.loss is not None for step in steps])
    return RankSteps(
        rank=rank.facts.rank if rank.facts else index,
        step=tuple(steps[at].step for at in kept),
        ms=tuple(times[at] for at in kept),
        other_ms=tuple(steps[at].wall_ms if clock == "device" else steps[at].gpu_ms for at in kept),
        loss=tuple(steps[at].loss for at in kept),
        mark=tuple(marks[at] for at in kept),
        clock=clock,
        every=every,
        outliers=marks.count("outlier"),
        phases=mean_phases(rank.steady.steps, "phases"),
    )


def marked(steps: Sequence[Step], times: Sequence[float | None], steady: SteadySteps) -> list[Mark]:
    """What each step counts as."""
    kept = {id(step) for step in steady.steps}
    low, high = fences(steady.times)
    return [
        "warm-up"
        if at < steady.warmup
        else "left out"
        if id(step) not in kept
        else "steady"
        if ms is None or low <= ms <= high
        else "outlier"
        for at, (step, ms) in enumerate(zip(steps, times, strict=True))
    ]


def fences(times: Sequence[float]) -> tuple[float, float]:
    """Step times outside of which a steady step is an outlier, ms."""
    first, middle, third = (float(x) for x in np.quantile(times, (0.25, 0.5, 0.75)))
    margin = max(FENCE * (third - first), LEAST * middle)
    return first - margin, third + margin


def thinned(times: Sequence[float], most: int, known: Sequence[bool] = ()) -> tuple[int, list[int]]:
    """(group length, indices): all where there are few, else the slowest and the middle one of each group. known: of
    which the loss is; where it is of some in a group, the other one is the middle one of these."""
    if len(times) <= most:
        return 1, list(range(len(times)))
    every = -(-2 * len(times) // most)
    kept: set[int] = set()
    for begin in range(0, len(times), every):
        order = sorted(range(begin, min(begin + every, len(times))), key=times.__getitem__)
        others = [at for at in order if known[at]] or order if known else order
        kept |= {order[-1], others[len(others) // 2]}
    return every, sorted(kept)
