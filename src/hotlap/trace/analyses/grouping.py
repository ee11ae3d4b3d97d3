"""What several analyses need of host rows: their names as numbers, and climbing from a row to what it belongs to."""

import weakref
from collections.abc import Callable
from functools import cached_property, wraps
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from hotlap.records.diagnosis import Place

from ..links import enclosing, outermost
from ..tables import Trace
from ..view import View, place_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Owner = TypeVar("Owner")
Answer = TypeVar("Answer")


def remembered(function: Callable[[Owner], Answer]) -> Callable[[Owner], Answer]:
    """The same answer for the same object while it lives; the answer must not hold the object."""
    kept: weakref.WeakKeyDictionary[Owner, Answer] = weakref.WeakKeyDictionary()

    @wraps(function)
    def answer(owner: Owner) -> Answer:
        if owner not in kept:
            kept[owner] = function(owner)
        return kept[owner]

    return answer


def coded(texts: pl.Series) -> tuple[list[str], Ints]:
    """The distinct texts, and for each row the number of its text."""
    distinct = texts.unique()
    codes = texts.cast(pl.Enum(distinct)).to_physical().to_numpy().astype(np.int64)
    return distinct.to_list(), codes


class Host:
    """Columns of `host` as arrays: names (distinct), code (of each row's name), parent, op, python (which rows are)."""

    def __init__(self, host: pl.DataFrame) -> None:
        self.names, self.code = coded(host["name"])
        self.parent: Ints = host["parent"].to_numpy().astype(np.int64)
        self.op: Bools = (host["cat"] == "op").to_numpy()
        self.python: Bools = (host["cat"] == "python").to_numpy()
        self._order = host.select("sequence", "start", "tid")

    def named(self, wanted: Callable[[str], object]) -> Bools:
        """Which rows have a name that is wanted; each distinct name is asked once."""
        table = np.array([bool(wanted(name)) for name in self.names], np.bool_)
        return table[self.code]

    def name(self, rows: Ints) -> list[str]:
        """Of a few rows."""
        return [self.names[code] for code in self.code[rows].tolist()]

    @cached_property
    def users(self) -> Bools:
        """Which rows are Python functions of the user."""
        mine = np.zeros(len(self.names), np.bool_)
        for code in np.unique(self.code[self.python]).tolist():
            mine[code] = place_of(self.names[code]) is not None
        return mine[self.code] & self.python

    @cached_property
    def forward(self) -> Ints:
        """For each row of the backward the outermost forward op with its sequence number; -1 for others, and where none
        is. Of several it is the last: an op without a backward has the number that the next one with one takes."""
        sequence, start, tid = (self._order[column].to_numpy() for column in self._order.columns)
        found = np.full(len(sequence), -1, np.int64)
        numbered = self.op & (sequence >= 0)
        engine = self.named(lambda name: name.startswith("autograd::engine"))
        back = self.named(lambda name: "Backward" in name) | engine
        rows, first = np.nonzero(numbered & back)[0], np.nonzero(numbered & ~back)[0]
        above = np.maximum(self.parent[first], 0)
        first = first[(self.parent[first] < 0) | ~self.op[above] | (sequence[above] != sequence[first])]
        recomputed = np.isin(tid[first], np.unique(tid[engine]))  # a thread has numbers of its own
        first = first[np.lexsort((-start[first], recomputed, sequence[first]))]
        first = first[np.diff(sequence[first], prepend=-1) != 0]
        if len(first):
            index = np.minimum(np.searchsorted(sequence[first], sequence[rows]), len(first) - 1)
            found[rows] = np.where(sequence[first[index]] == sequence[rows], first[index], -1)
        return found

    def nearest(self, rows: Ints, wanted: Bools) -> Ints:
        """For each row the nearest wanted one, -1 where there is none: of its ancestors, itself included, the innermost
        that is wanted, or whose forward op is or lies in one."""
        if not wanted.any():
            return np.full(len(rows), -1, np.int64)
        linked = np.nonzero((self.forward >= 0) & ~wanted)[0]
        target, at = np.unique(self.forward[linked], return_inverse=True)
        meant = np.where(wanted, np.arange(len(wanted)), -1)
        meant[linked] = enclosing(target, self.parent, wanted)[at.reshape(-1)]
        distinct, back = np.unique(rows, return_inverse=True)
        found = enclosing(distinct, self.parent, meant >= 0)
        return np.where(found >= 0, meant[np.maximum(found, 0)], -1)[back.reshape(-1)]


@remembered
def _host_of(trace: Trace) -> Host:
    return Host(trace.host)


def host_of(view: View) -> Host:
    """Made once for each trace."""
    return _host_of(view.trace)


def places(view: View, rows: Ints) -> tuple[list[Place | None], Ints]:
    """The distinct places of rows, and for each row the number of its own."""
    host, lines = host_of(view), view.lines or {}
    wanted = host.users
    if lines:
        wanted = wanted.copy()
        wanted[[row for row in lines if row < len(wanted)]] = True
    found, back = np.unique(host.nearest(rows, wanted), return_inverse=True)
    named = zip(found.tolist(), host.name(found), strict=True) if len(host.names) else ((-1, "") for _ in found)
    distinct: dict[Place | None, int] = {}
    numbers = [
        distinct.setdefault(None if row < 0 else lines.get(row) or place_of(name), len(distinct)) for row, name in named
    ]
    return list(distinct), np.array(numbers, np.int64)[back.reshape(-1)]


def union_ns() -> pl.Expr:
    """The measure of the union of intervals (start, end) that are in order of start."""
    new = pl.col("end") - pl.max_horizontal("start", pl.col("end").cum_max().shift(1))
    return new.clip(lower_bound=0).sum()


def outermost_op(view: View, rows: Ints) -> Ints:
    """The outermost op of the unbroken chain of ops and calls around each row; the row itself where no op is."""
    host = host_of(view)
    return outermost(rows, host.parent, host.op)


def packed_places(view: View, rows: Ints) -> pl.Series:
    """The place of each row (`grouping.places`) as a text, "" for none. Where none is known, that of what the main
    thread was in when the row began, such as the line of `loss.backward()`."""
    found, number = places(view, rows)
    lost = np.array([place is None for place in found], bool)[number] & (rows >= 0)
    if lost.any():
        rows = rows.copy()
        rows[lost] = view.at(view.host("start")[rows[lost]])
        found, number = places(view, rows)
    return pl.Series([packed(place) for place in found], dtype=pl.String).gather(number)


def packed(place: Place | None) -> str:
    """A place as a text that sorts and groups; `unpacked` is its inverse."""
    return "" if place is None else f"{place.file}\0{'' if place.line is None else place.line}\0{place.function or ''}"


def unpacked(text: str) -> Place | None:
    """Inverse of `packed`."""
    if not text:
        return None
    file, line, function = text.split("\0")
    return Place(file=file, line=int(line) if line else None, function=function or None)
