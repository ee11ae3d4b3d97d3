"""Who encloses whom on the host, and which call launched which device work."""

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


FEW: Final = 64
"""Events of a thread up to which a loop is faster than arrays."""


def nesting(threads: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """(parent, depth) of each event; rows are in order of start, and of two that start together the longer is first.

    threads: a number for each event's thread. The parent is the innermost event of the same thread that is open when
    this one starts; -1 where there is none; depth is the number of ancestors. An event that ends later than the one it
    began in (clocks differ by a few ns) still has it as its parent, and holds it open. Time: n log n, and one pass per
    level of depth, each over the events of two levels.
    """
    parent, depth = np.full(len(starts), -1, np.int64), np.zeros(len(starts), np.int64)
    order = np.argsort(threads, kind="stable")
    cuts = np.nonzero(np.diff(threads[order]))[0] + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(order)], strict=True):
        if end - begin > 1:
            rows = order[begin:end]
            above, depth[rows] = _nesting_of_thread(starts[rows], ends[rows])
            parent[rows] = np.where(above >= 0, rows[np.maximum(above, 0)], -1)
    return parent, depth


def _nesting_of_thread(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    if len(starts) > FEW:
        parent, depth = _by_level(starts, ends)
        # right where no event ends after its parent: the first that does would be seen here
        if not ((parent >= 0) & (ends > ends[parent])).any():
            return parent, depth
    return _by_stack(starts, ends)


def _by_stack(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Event by event."""
    parent: list[int] = []
    depth: list[int] = []
    rows: list[int] = []  # that are open
    open_until: list[int] = []
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while open_until and open_until[-1] <= start:
            open_until.pop()
            rows.pop()
        parent.append(rows[-1] if rows else -1)
        depth.append(len(rows))
        rows.append(row)
        open_until.append(end)
    return np.array(parent, np.int64), np.array(depth, np.int64)


def _by_level(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Level by level of depth, of events that lie within each other or apart."""
    count = len(starts)
    # depth of i = how many earlier events are still open when it starts; of events at one time, ends come first
    closed = np.searchsorted(np.sort(ends), starts, side="right")
    early = np.zeros(count, np.int64)  # events that start at this very time with no length have closed but not begun
    instant = ends == starts
    if instant.any():
        same = np.searchsorted(starts[instant], starts, side="right") - np.searchsorted(
            np.nonzero(instant)[0], np.arange(count), side="left"
        )
        early = np.maximum(same, 0)
    depth = np.arange(count) - closed + early
    parent = np.full(count, -1, np.int64)
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max()) + 2))
    for level in range(1, int(depth.max()) + 1):
        above = order[bounds[level - 1] : bounds[level]]
        here = order[bounds[level] : bounds[level + 1]]
        if len(above) and len(here):
            index = np.searchsorted(above, here) - 1
            parent[here] = np.where(index >= 0, above[np.maximum(index, 0)], -1)
    return parent, depth


def first_match(keys: Ints, wanted: Ints) -> Ints:
    """Position in `keys` of the first that equals each of `wanted`; -1 where none does, or where it is -1 or 0."""
    found = np.full(len(wanted), -1, np.int64)
    if not len(keys) or not len(wanted):
        return found
    order = np.argsort(keys, kind="stable")
    index = np.searchsorted(keys[order], wanted)
    hit = (index < len(keys)) & (wanted > 0)
    hit[hit] = keys[order][index[hit]] == wanted[hit]
    found[hit] = order[index[hit]]
    return found


def enclosing(rows: Ints, parent: Ints, wanted: npt.NDArray[np.bool_]) -> Ints:
    """For each row the nearest ancestor, itself included, that is wanted; -1 where there is none."""
    found = rows.copy()
    while True:
        climbing = found >= 0
        climbing[climbing] = ~wanted[found[climbing]]
        if not climbing.any():
            return found
        found[climbing] = parent[found[climbing]]


def outermost(rows: Ints, parent: Ints, wanted: npt.NDArray[np.bool_]) -> Ints:
    """For each row the last of the wanted ancestors that follow on it without a gap; the row itself where none does."""
    best, climbing = rows.copy(), rows >= 0
    while climbing.any():
        above = parent[np.maximum(best, 0)]
        climbing &= (above >= 0) & wanted[np.maximum(above, 0)]
        best = np.where(climbing, above, best)
    return best


def topmost(rows: Ints, parent: Ints, wanted: npt.NDArray[np.bool_]) -> Ints:
    """For each row the last of its ancestors, itself included, that is wanted; -1 where there is none."""
    found = best = enclosing(rows, parent, wanted)
    while (found >= 0).any():
        found = enclosing(np.where(found >= 0, parent[found], -1), parent, wanted)
        best = np.where(found >= 0, found, best)
    return best


def ranges(first: Ints, count: Ints) -> Ints:
    """The whole numbers from each first on, `count` of each, one after another."""
    found: Ints = np.arange(int(count.sum())) + np.repeat(first - (np.cumsum(count) - count), count)
    return found
