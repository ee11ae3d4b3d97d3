"""Nesting and matching against slow ones that are plainly right."""

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.trace.links import enclosing, first_match, nesting

Event = tuple[int, int, int]
"""(thread, start, duration)"""
events = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 14), st.sampled_from([0, 0, 1, 2, 3, 5, 9])), max_size=14)


def arrays(rows: list[Event]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    threads, starts, durs = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return threads, starts, starts + durs


def by_definition(rows: list[Event]) -> list[int]:
    """O(n²): the parent is the latest earlier event of the thread that is open, or holds one open that it is in."""
    parents = []
    for i, (thread, start, _) in enumerate(rows):
        candidates = [j for j in range(i) if rows[j][0] == thread and rows[j][1] + rows[j][2] > start]
        parents.append(max(candidates, default=-1))
    return parents


def sort(rows: list[Event]) -> list[Event]:
    return sorted(rows, key=lambda row: (row[1], -row[2]))


def ancestors(parents: list[int], row: int) -> int:
    count = 0
    while (row := parents[row]) >= 0:
        count += 1
    return count


@given(events)
@settings(max_examples=100)
def test_any_events_against_the_definition(rows: list[Event]) -> None:
    """Crossing events too."""
    rows = sort(rows)
    parent, depth = nesting(*arrays(rows))
    assert parent.tolist() == by_definition(rows)
    assert all(p < i for i, p in enumerate(parent.tolist()))
    assert depth.tolist() == [ancestors(parent.tolist(), row) for row in range(len(rows))]


def test_an_event_that_ends_late_keeps_its_parent() -> None:
    #        A [0, 10)   B [5, 12)    C [6, 7)    D [11, 12)  E [12, 13)
    rows = [(0, 0, 10), (0, 5, 7), (0, 6, 1), (0, 11, 1), (0, 12, 1)]
    parent, depth = nesting(*arrays(rows))
    assert parent.tolist() == [-1, 0, 1, 1, -1]
    assert depth.tolist() == [0, 1, 2, 2, 0]


def test_threads_are_apart_and_many_threads_are_no_problem() -> None:
    count = 50_000
    threads = np.repeat(np.arange(count), 2)[np.random.default_rng(0).permutation(2 * count)]
    starts = np.arange(2 * count)
    begun = time.process_time()
    parent, depth = nesting(threads, starts, np.full(2 * count, 1 << 60))
    assert time.process_time() - begun < 60  # one pass a thread would take hours
    assert (depth == (parent >= 0)).all()
    assert (threads[parent[parent >= 0]] == threads[parent >= 0]).all()
    assert int(depth.sum()) == count


def test_nothing() -> None:
    none = np.empty(0, np.int64)
    assert [len(found) for found in nesting(none, none, none)] == [0, 0]


@given(st.lists(st.integers(-1, 6), max_size=10), st.lists(st.integers(-1, 8), max_size=10))
@settings(max_examples=100)
def test_first_match(keys: list[int], wanted: list[int]) -> None:
    expected = [keys.index(w) if w > 0 and w in keys else -1 for w in wanted]
    assert first_match(np.array(keys, np.int64), np.array(wanted, np.int64)).tolist() == expected


@given(st.data())
@settings(max_examples=100)
def test_enclosing(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    parent = [data.draw(st.integers(-1, i - 1)) for i in range(count)]
    wanted = [data.draw(st.booleans()) for _ in range(count)]
    rows = data.draw(st.lists(st.integers(-1, count - 1), max_size=8))

    def climb(row: int) -> int:
        while row >= 0 and not wanted[row]:
            row = parent[row]
        return row

    asked = np.array(rows, np.int64)
    assert enclosing(asked, np.array(parent), np.array(wanted)).tolist() == [climb(row) for row in rows]
    assert asked.tolist() == rows
