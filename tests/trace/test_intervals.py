"""Interval arithmetic against sets of integers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.trace.intervals import (
    Intervals,
    clip,
    complement,
    covered,
    difference,
    intersection,
    joined,
    union,
)

LOW, HIGH = -3, 40
raw = st.lists(st.tuples(st.integers(LOW, HIGH), st.integers(LOW, HIGH)), max_size=12)
point = st.integers(LOW - 2, HIGH + 2)


def made(pairs: list[tuple[int, int]]) -> Intervals:
    starts, ends = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    return union(starts, ends)


def members(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in pairs for t in range(start, end)}


def held(one: Intervals) -> set[int]:
    """Its integers; on the way, that it is in normal form."""
    starts, ends = one.starts.tolist(), one.ends.tolist()
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
    assert one.starts.dtype == one.ends.dtype == np.int64
    found = members(list(zip(starts, ends, strict=True)))
    assert one.total == len(found)
    return found


@given(raw)
@settings(max_examples=100)
def test_union(pairs: list[tuple[int, int]]) -> None:
    assert held(made(pairs)) == members(pairs)


@given(raw, point, point)
@settings(max_examples=100)
def test_clip_and_complement(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    window = set(range(start, end))
    assert held(clip(made(pairs), start, end)) == members(pairs) & window
    assert held(complement(made(pairs), start, end)) == window - members(pairs)


@given(raw, raw)
@settings(max_examples=200)
def test_two_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = made(one), made(other)
    assert held(joined(a, b)) == members(one) | members(other)
    assert held(intersection(a, b)) == members(one) & members(other)
    assert held(difference(a, b)) == members(one) - members(other)


@given(raw, raw)
@settings(max_examples=100)
def test_covered(pairs: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    starts, ends = (np.array([pair[i] for pair in asked], np.int64) for i in (0, 1))
    expected = [len(members(pairs) & set(range(start, end))) for start, end in asked]
    assert covered(made(pairs), starts, ends).tolist() == expected


@given(raw, raw)
@settings(max_examples=100)
def test_parts_sum_to_the_whole(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = made(one), made(other)
    assert difference(a, b).total + intersection(a, b).total == a.total
    assert joined(a, b).total == a.total + b.total - intersection(a, b).total
    assert clip(a, 0, 20).total + complement(a, 0, 20).total == 20


def test_times_of_a_trace_are_exact() -> None:
    big = 1 << 61
    a = union(np.array([big, big + 5]), np.array([big + 3, big + 6]))
    assert a.total == 4
    assert complement(a, big, big + 10).total == 6
    assert len(union(np.empty(0, np.int64), np.empty(0, np.int64))) == 0
