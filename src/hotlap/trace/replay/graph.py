"""The window as a graph of tasks: what ran, and what had to wait for what.

Tasks (arrays over tasks; times in ns, `start` and `dur` as measured):
* HOST: a thread's own work between calls, with everything in it: Python, operators, the allocator;
* CALL: a launch or synchronisation call; `dur` of a call that waits is what it costs when there is nothing to wait for;
* RETURN: the instant at which a call returns; waits end here;
* DEVICE: one piece of device work;
* ARRIVAL: of several ranks, the instant at which a rank's collective starts on the device (its DEVICE task is the
  transfer); HUB: the instant at which the last rank has arrived.

Edges say that a task starts no earlier than `lag` after another one ends (or starts, where `from_start`):
* PROGRAM: a thread does one thing after another. HANDOVER: the main thread starts autograd's thread and waits for it;
* LAUNCH: device work after the start of its call;
* STREAM: work of one stream in order. EVENT: cudaStreamWaitEvent between streams. COLLECTIVE: see above;
* SYNC: a call that waits for device work.

Durations and the lags of edges are all that a replay takes from the clock; see `simulate.fitted`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..view import View

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Kind(IntEnum):
    """Of a task."""

    HOST = 0
    CALL = 1
    RETURN = 2
    DEVICE = 3
    ARRIVAL = 4
    HUB = 5


class Edge(IntEnum):
    """Why a task waits for another."""

    PROGRAM = 0
    HANDOVER = 1
    LAUNCH = 2
    STREAM = 3
    EVENT = 4
    SYNC = 5
    COLLECTIVE = 6


@dataclass(frozen=True)
class Span:
    """One rank's part of the graph. start, end: its window; steps: in it; host: the task that ends the window on its
    main thread; work: tasks of device work launched in the window; prior: launched before, unfinished at its start.
    offset: added to times of the view's trace to get times of the graph."""

    view: View
    start: int
    end: int
    steps: int
    host: int
    work: Ints
    prior: Ints
    offset: int = 0


@dataclass(frozen=True)
class Graph:
    """Tasks, edges between them, and the ranks they belong to. release: earliest start of a task that nothing in the
    graph starts, else 0; row: of `host` for CALL and RETURN, of `device` for DEVICE and ARRIVAL, else -1; rank: index
    of `spans`."""

    kind: Ints
    rank: Ints
    row: Ints
    start: Ints
    dur: Ints
    release: Ints
    src: Ints
    dst: Ints
    edge: Ints
    lag: Ints
    from_start: Bools
    spans: tuple[Span, ...]

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def source_time(self) -> Ints:
        """When each edge's source lets go, as measured."""
        return self.start[self.src] + np.where(self.from_start, 0, self.dur[self.src])


TASK: Final = ("kind", "rank", "row", "start", "dur", "release")
EDGE: Final = ("src", "dst", "edge", "lag", "from_start")
"""Columns of a graph: of its tasks, and of its edges."""


class Builder:
    """Collects tasks and edges, on top of those of a graph where one is given; numbers of tasks are given in order.
    rank, offset: of the tasks that are added, and what is added to their times."""

    def __init__(self, graph: Graph | None = None) -> None:
        self.count = len(graph) if graph is not None else 0
        self.rank: Ints | int = 0
        self.offset = 0
        self._tasks = [tuple(getattr(graph, name) for name in TASK)] if graph is not None else []
        self._edges = [tuple(getattr(graph, name) for name in EDGE)] if graph is not None else []

    def add(self, kind: Kind, row: Ints | int, start: Ints, dur: Ints | int, release: Ints | int = 0) -> Ints:
        """New tasks; their numbers."""
        ids = np.arange(self.count, self.count + len(start), dtype=np.int64)
        self.count += len(start)
        begun = np.where(np.not_equal(release, 0), release + self.offset, 0)
        cells = (int(kind), self.rank, row, start + self.offset, dur, begun)
        self._tasks.append(tuple(np.broadcast_to(np.asarray(cell, np.int64), start.shape) for cell in cells))
        return ids

    def link(self, edge: Edge, src: Ints, dst: Ints, lag: Ints | int = 0, *, from_start: bool = False) -> None:
        """New edges from src[i] to dst[i]; pairs with a negative number are left out."""
        real = (src >= 0) & (dst >= 0)
        lags = np.broadcast_to(np.asarray(lag, np.int64), src.shape)[real]
        count = len(lags)
        self._edges.append((src[real], dst[real], np.full(count, int(edge)), lags, np.full(count, from_start)))

    def graph(self, spans: Sequence[Span]) -> Graph:
        """All of it; of equal edges one."""
        made: dict[str, Any] = {
            name: np.concatenate(parts)
            for names, each in ((TASK, self._tasks), (EDGE, self._edges))
            for name, parts in zip(names, zip(*each, strict=True), strict=True)
        }
        _, first = np.unique(np.stack([made[name] for name in EDGE[:3]]), axis=1, return_index=True)
        return Graph(**made | {name: made[name][first] for name in EDGE}, spans=tuple(spans))
