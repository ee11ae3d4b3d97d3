"""Arithmetic of half-open integer intervals [start, end), held as sorted arrays of starts and ends.

`union` makes a set: sorted, disjoint, not touching, none empty. The other functions take and return sets.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """A set of intervals."""

    starts: Ints
    ends: Ints

    @property
    def total(self) -> int:
        """Its measure."""
        return int((self.ends - self.starts).sum())

    def __len__(self) -> int:
        return len(self.starts)


NONE: Final = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Ints, ends: Ints) -> Intervals:
    """Of any intervals, in any order; empty and backward ones count for nothing."""
    real = ends > starts
    starts, ends = starts[real], ends[real]
    order = np.argsort(starts, kind="stable")
    starts, latest = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), dtype=bool)
    first[1:] = starts[1:] > latest[:-1]
    last = np.ones(len(starts), dtype=bool)
    last[:-1] = first[1:]
    return Intervals(starts[first], latest[last])


def clip(one: Intervals, start: int, end: int) -> Intervals:
    """The part within [start, end)."""
    return union(np.maximum(one.starts, start), np.minimum(one.ends, end))


def complement(one: Intervals, start: int, end: int) -> Intervals:
    """The part of [start, end) outside."""
    inside = clip(one, start, end)
    starts = np.concatenate([np.array([start], np.int64), inside.ends])
    ends = np.concatenate([inside.starts, np.array([end], np.int64)])
    real = ends > starts
    return Intervals(starts[real], ends[real])


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """What is in both."""
    if not len(one) or not len(other):
        return NONE
    start, end = int(min(one.starts[0], other.starts[0])), int(max(one.ends[-1], other.ends[-1]))
    return complement(joined(complement(one, start, end), complement(other, start, end)), start, end)


def joined(one: Intervals, other: Intervals) -> Intervals:
    """What is in either."""
    return union(np.concatenate([one.starts, other.starts]), np.concatenate([one.ends, other.ends]))


def difference(one: Intervals, other: Intervals) -> Intervals:
    """What is in `one` only."""
    if not len(one):
        return one
    return intersection(one, complement(other, int(one.starts[0]), int(one.ends[-1])))


def covered(one: Intervals, starts: Ints, ends: Ints) -> Ints:
    """How much of each [start, end) lies in the set."""
    if not len(one):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(one.ends - one.starts)])

    def measure(at: Ints) -> Ints:  # of the set, up to `at`
        index = np.searchsorted(one.starts, at, side="right")
        inside = np.where(index > 0, np.minimum(at, one.ends[index - 1]) - one.starts[index - 1], 0)
        return np.where(index > 0, before[np.maximum(index - 1, 0)] + inside, 0)

    return measure(np.maximum(ends, starts)) - measure(starts)
