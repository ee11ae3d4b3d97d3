"""Who encloses whom on the host, and which call launched which device work."""

from collections import defaultdict
from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def nesting(threads: Iterable[Hashable], starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """(parent, depth) of each event; rows are in order of start, and of two that start together the longer is first.

    threads: of each event. The parent is the innermost event of the same thread that is open when
    this one starts; -1 where there is none; depth is the number of ancestors. An event that ends later than the one it
    began in (clocks differ by a few ns) still has it as its parent, and holds it open.
    """
    parent: list[int] = []
    depth: list[int] = []
    open_: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(
        list
    )  # row and end, of each thread the innermost last
    for row, (thread, start, end) in enumerate(zip(threads, starts.tolist(), ends.tolist(), strict=True)):
        around = open_[thread]
        while around and around[-1][1] <= start:
            around.pop()
        parent.append(around[-1][0] if around else -1)
        depth.append(len(around))
        around.append((row, end))
    return np.array(parent, np.int64), np.array(depth, np.int64)


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
