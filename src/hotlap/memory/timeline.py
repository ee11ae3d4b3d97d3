"""What is allocated over a window, by category, for a chart."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import msgspec

from hotlap.records.memory import STEP_END, Category, Mark, MemoryTimeline, MemoryWindow

from .usage import told_of

POINTS: Final = 800
"""At most, two of each stretch of events."""
MARKS: Final = 200

Changes = dict[int, list[tuple[Category, int]]]
"""Bytes that an event adds to categories, by its number; -1: what was there before the first."""
Point = tuple[int, Counter[Category]]
"""Number of the event after which it is so, and what is allocated."""


def timeline(window: MemoryWindow) -> MemoryTimeline | None:
    """Of a window; None where nothing is told of when."""
    told, lives, *_ = told_of(window)
    changes = defaultdict[int, list[tuple[Category, int]]](list)
    for life in lives:
        category = told.category(life)
        changes[life.begun].append((category, life.bytes))
        if life.ended is not None:
            changes[life.ended].append((category, -life.bytes))
    times = list(accumulate(told.times, max))  # a clock that was set back
    count = len(times)
    first = min((*times[:1], *told.mark_times[:1]), default=None)
    if first is None:
        return None
    points = list(_thinned(changes, count))
    present = {category for _, sizes in points for category, size in sizes.items() if size}
    columns = {category: tuple(sizes[category] for _, sizes in points) for category in present}
    steady_first = sorted(columns, key=lambda one: (-min(columns[one]), -max(columns[one]), one))
    return MemoryTimeline(
        times=tuple((times[number] if number >= 0 else first) - first for number, _ in points),
        categories=tuple(steady_first),
        bytes=tuple(columns[category] for category in steady_first),
        marks=tuple(_marks(told.marks, first)),
    )


def _thinned(changes: Changes, count: int) -> Iterator[Point]:
    """What there is at first; of each stretch of events the highest and the lowest point, as they come."""
    now: Counter[Category] = Counter()
    total = _apply(now, changes.get(-1, []))
    yield -1, now.copy()
    every = max(1, -(-2 * count // POINTS))
    for begin in range(0, count, every):
        high: tuple[int, Point] | None = None
        low: tuple[int, Point] | None = None
        for number in range(begin, min(begin + every, count)):
            total += _apply(now, changes.get(number, []))
            if high is None or total > high[0]:
                high = total, (number, now.copy())
            if low is None or total < low[0]:
                low = total, (number, now.copy())
        kept = {point[0]: point for _, point in filter(None, (high, low))}
        yield from (kept[number] for number in sorted(kept))


def _apply(now: Counter[Category], changes: list[tuple[Category, int]]) -> int:
    """Change what is allocated. Returns by how much."""
    for category, size in changes:
        now[category] += size
    return sum(size for _, size in changes)


def _marks(marks: list[Mark], first: int) -> Iterator[Mark]:
    told = marks if len(marks) <= MARKS else [one for one in marks if one.phase == STEP_END][:MARKS]
    return (msgspec.structs.replace(one, time=one.time - first) for one in told)
