"""The most memory at each moment of a step, so that the same moments of other runs can be compared.

A command does the same operations with a larger batch, so its allocations come in the same order: a moment is a part of
a phase, by the number of allocations. What is given back never makes a peak, and the garbage collector does it at one
place or another. At one moment memory grows along a line where the largest of all does not: which moment is the largest
changes with the batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hotlap.records.fit import Moments
from hotlap.records.memory import STEP_END, MemoryWindow

from .usage import ALLOC, FREE

IntArray = npt.NDArray[np.int64]
PARTS: Final = 16
"""Of a phase."""


def varies(window: MemoryWindow) -> float:
    """By what share of the largest the peaks of the window's steps differ, as where lengths do; 0 where not known."""
    level, times, _ = _levels(window)
    ends = [mark.time for mark in window.marks if mark.phase == STEP_END]
    step = np.searchsorted(ends, times, side="left")
    peaks = [int(level[step == number].max()) for number in range(len(ends)) if (step == number).any()]
    return (max(peaks) - min(peaks)) / max(peaks) if len(peaks) > 1 and max(peaks) > 0 else 0.0


def moments(window: MemoryWindow) -> dict[str, Moments]:
    """By phase of a step (`backward`, `other 2`), the most of the window's steps; empty where it does not tell."""
    marks = sorted(window.marks, key=lambda mark: mark.time)
    level, event_times, taken = _levels(window)
    level, event_times = level[taken], event_times[taken]
    if not len(level) or not marks or window.left_out:
        return {}
    at = np.searchsorted([mark.time for mark in marks], event_times, side="right") - 1
    # a phase goes on over marks of the same name
    begins = [number for number, mark in enumerate(marks) if not number or mark.phase != marks[number - 1].phase]
    stretch = np.searchsorted(begins, at, side="right") - 1
    found: dict[str, Moments] = {}
    times: Counter[str] = Counter()
    for number, begin in enumerate(begins):
        phase, inside = marks[begin].phase, level[stretch == number]
        if phase == STEP_END:
            times.clear()
        times[phase] += 1
        name = phase if times[phase] == 1 else f"{phase} {times[phase]}"
        sizes = [int(part.max()) for part in np.array_split(inside, PARTS) if len(part)]
        if sizes and min(sizes) >= 0:
            found[name] = _both(found.get(name), Moments(len(inside), tuple(sizes)))
    return found


def _levels(window: MemoryWindow) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
    """What is allocated after each event, bytes, when that happened, ns, and whether something was taken."""
    events = window.events
    count = min(map(len, (events.actions, events.bytes, events.times)))
    actions = np.array(events.actions[:count])
    change = np.where(actions == ALLOC, 1, np.where(actions == FREE, -1, 0)) * np.array(events.bytes[:count], np.int64)
    rounding = max(0, sum(window.blocks.rounded) - sum(window.blocks.bytes)) if window.blocks.rounded else 0
    level = sum(window.blocks.bytes) + rounding - change.sum() + np.cumsum(change)
    return level, np.array(events.times[:count], np.int64), actions == ALLOC


def most(found: Mapping[str, Moments]) -> int:
    """The largest of them, bytes."""
    return max((max(one.bytes) for one in found.values()), default=0)


def series(runs: Sequence[Mapping[str, Moments]]) -> list[tuple[float, ...]]:
    """The same moment in each run, one row a moment; empty where phases differ.

    A phase that has other allocations in another run, as where each row of a batch is a tensor, is one moment as a
    whole."""
    if any(one.keys() != runs[0].keys() for one in runs):
        return []
    rows: list[tuple[float, ...]] = []
    for phase in runs[0]:
        told = [one[phase] for one in runs]
        same = len({one.allocations for one in told}) == 1 and told[0].allocations > 0
        rows += zip(*(one.bytes for one in told), strict=True) if same else [tuple(max(one.bytes) for one in told)]
    return rows


def _both(one: Moments | None, other: Moments) -> Moments:
    """Of two steps."""
    if one is None:
        return other
    if one.allocations != other.allocations:
        return Moments(0, (max(*one.bytes, *other.bytes),))
    return Moments(one.allocations, tuple(map(max, one.bytes, other.bytes)))
