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
* LAUNCH: device work after the start of its call. QUEUE: a launch call that found the launch queue full;
* STREAM: work of one stream in order. EVENT: cudaStreamWaitEvent between streams. COLLECTIVE: see above;
* SYNC: a call that waits for device work.

Durations and the lags of edges are all that a replay takes from the clock; see `simulate.fitted`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

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
    QUEUE = 3
    STREAM = 4
    EVENT = 5
    SYNC = 6
    COLLECTIVE = 7


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

    def local(self, tasks: Ints, rank: int) -> tuple[Ints, Ints]:
        """Start and end of tasks on the clock of their rank's trace, as measured."""
        start = self.start[tasks] - self.spans[rank].offset
        return start, start + self.dur[tasks]


class Builder:
    """Collects tasks and edges; numbers of tasks are given in order."""

    def __init__(self) -> None:
        self.count = 0
        self._tasks: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
        self._edges: list[tuple[Ints, Ints, Ints, Ints, Bools]] = []

    def add(self, kind: Ints, row: Ints, start: Ints, dur: Ints, release: Ints | None = None) -> Ints:
        """New tasks; their numbers."""
        ids = np.arange(self.count, self.count + len(start), dtype=np.int64)
        self.count += len(start)
        self._tasks.append((kind, row, start, dur, np.zeros(len(start), np.int64) if release is None else release))
        return ids

    def link(self, edge: Edge, src: Ints, dst: Ints, lag: Ints | int = 0, *, from_start: bool = False) -> None:
        """New edges from src[i] to dst[i]; pairs with a negative number are left out."""
        real = (src >= 0) & (dst >= 0)
        count, lags = int(real.sum()), np.broadcast_to(np.asarray(lag, np.int64), src.shape)
        self._edges.append((src[real], dst[real], np.full(count, int(edge)), lags[real], np.full(count, from_start)))

    def tasks(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """kind, row, start, dur, release."""
        kind, row, start, dur, release = (np.concatenate(column) for column in zip(*self._tasks, strict=True))
        return kind, row, start, dur, release

    def edges(self) -> tuple[Ints, Ints, Ints, Ints, Bools]:
        """src, dst, edge, lag, from_start; of equal edges one."""
        src, dst, edge, lag, start = (np.concatenate(column) for column in zip(*self._edges, strict=True))
        _, first = np.unique(np.stack([src, dst, edge]), axis=1, return_index=True)
        return src[first], dst[first], edge[first], lag[first], start[first].astype(bool)


def constant(like: Sequence[int] | Ints, value: int) -> Ints:
    """An array as long as another."""
    return np.full(len(like), value, np.int64)
