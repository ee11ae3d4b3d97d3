"""From views to the graph of their windows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from hotlap.records.trace import Window

from ..steps import find_windows
from ..view import View
from .device import device_tasks, event_edges, queue_edges, sync_edges
from .graph import Builder, Edge, Graph, Ints, Kind, Span
from .host import host_tasks
from .simulate import fitted, unwaited

STEPS: Final = 5
"""A longer window is replayed by this many of its steps."""
MOST_WORK: Final = 60_000
"""Steps with more device work than this, over all ranks, are replayed by fewer."""


def window_graph(views: Sequence[View]) -> Graph:
    """The graph of the views' windows (a view a rank), or of STEPS typical steps of them; times from the earliest."""
    views = [replace(view, window=host_window(view)) for view in views]
    block = typical(views)
    parts = [_rank(view, *block) for view in views]
    graph = _joined(parts)
    return fitted(unwaited(_shifted(_collectives(graph, _matched(graph)))))


def host_window(view: View) -> Window:
    """The view's steps on the host's clock: a step is what was launched in it, whenever it ran."""
    device, host = find_windows(view.trace)
    return host if view.window == device else view.window


def typical(views: Sequence[View]) -> tuple[int, int]:
    """(first, end) of the steps to replay: of all runs of so many steps the one whose mean is nearest the median."""
    steps = np.array(views[0].window.steps, np.int64).reshape(-1, 2)
    count = min(len(v.window.steps) for v in views)
    work = sum(len(v.work) / v.window.count for v in views)
    some = max(1, min(STEPS, int(MOST_WORK / max(work, 1.0))))
    if count <= some:
        return 0, count
    begin, end = steps[: count - some + 1, 0], steps[some - 1 : count, 1]
    median = float(np.median(steps[:count, 1] - steps[:count, 0]))
    first = int(np.argmin(np.abs((end - begin) / some - median)))
    return first, first + some


def _rank(view: View, first: int, end: int) -> Graph:
    """The graph of one view, on its trace's clock."""
    steps = view.window.steps[first:end]
    start, stop = (steps[0][0], steps[-1][1]) if steps else (view.window.start_ns, view.window.end_ns)
    build = Builder()
    host = host_tasks(build, view, start, stop)
    device = device_tasks(build, view, host, start, stop)
    sync_edges(build, view, host, device)
    event_edges(build, host, device)
    queue_edges(build, host, device)
    kind, row, begin, dur, release = build.tasks()
    src, dst, edge, lag, from_start = build.edges()
    span = Span(view, start, stop, max(1, len(steps)), host.last, device.task[~device.prior], device.task[device.prior])
    return Graph(kind, np.zeros_like(kind), row, begin, dur, release, src, dst, edge, lag, from_start, (span,))


def _joined(parts: Sequence[Graph]) -> Graph:
    """Parts side by side, on one clock as far as the traces' bases tell."""
    before = np.cumsum([0, *(len(p) for p in parts)]).tolist()
    base = parts[0].spans[0].view.trace.base_ns
    moved = [p.spans[0].view.trace.base_ns - base for p in parts]
    spans = [
        replace(
            p.spans[0], start=p.spans[0].start + by, end=p.spans[0].end + by, host=p.spans[0].host + at,
            work=p.spans[0].work + at, prior=p.spans[0].prior + at, offset=by,
        )
        for p, at, by in zip(parts, before, moved, strict=False)
    ]  # fmt: skip

    def all_of(name: str, by: Sequence[int]) -> Ints:
        return np.concatenate([getattr(p, name) + b for p, b in zip(parts, by, strict=False)])

    none = [0] * len(parts)
    release = np.concatenate([np.where(p.release != 0, p.release + by, 0) for p, by in zip(parts, moved, strict=True)])
    return Graph(
        all_of("kind", none), all_of("rank", list(range(len(parts)))), all_of("row", none), all_of("start", moved),
        all_of("dur", none), release, all_of("src", before), all_of("dst", before), all_of("edge", none),
        all_of("lag", none), np.concatenate([p.from_start for p in parts]), tuple(spans),
    )  # fmt: skip


def _matched(graph: Graph) -> Ints:
    """Tasks of the same collective on all ranks, shape (collectives, ranks): the k-th of its kind in each window."""
    columns = []
    for span in graph.spans:
        rows = graph.row[span.work]
        described = span.view.trace.device["collective"].to_numpy()[rows]
        order = np.argsort(graph.start[span.work], kind="stable")
        tasks = [int(span.work[i]) for i in order if described[i] >= 0]
        texts = span.view.trace.collectives.rows()
        count: dict[tuple[object, ...], int] = {}
        keys = {}
        for task in tasks:
            key = texts[described[np.searchsorted(span.work, task)]][:5]  # name, dtype, sizes
            count[key] = count.get(key, 0) + 1
            keys[(*key, count[key])] = task
        columns.append(keys)
    if len(columns) < 2:
        return np.empty((0, len(columns)), np.int64)
    common = [k for k in columns[0] if all(k in other for other in columns[1:])]
    return np.array([[c[k] for c in columns] for k in common], np.int64).reshape(-1, len(columns))


def _collectives(graph: Graph, tasks: Ints) -> Graph:
    """Splits each collective into arrival and transfer, with clocks set so that collectives end together."""
    if not len(tasks):
        return graph
    graph = _synchronised(graph, tasks)
    count, ranks = tasks.shape
    arrived = graph.start[tasks]
    last = arrived.max(axis=1)
    end = graph.start + graph.dur
    start, dur = graph.start.copy(), graph.dur.copy()
    start[tasks] = last[:, None]
    dur[tasks] = np.maximum(end[tasks] - last[:, None], 0)
    arrival = len(graph) + np.arange(count * ranks, dtype=np.int64).reshape(count, ranks)
    hub = arrival[-1, -1] + 1 + np.arange(count, dtype=np.int64)
    renamed = np.arange(len(graph))
    renamed[tasks] = arrival
    flat, zeros = arrival.ravel(), np.zeros(count * ranks + count, np.int64)
    own = np.broadcast_to(hub[:, None], tasks.shape).ravel()
    src = np.concatenate([graph.src, flat, flat, own])
    dst = np.concatenate([renamed[graph.dst], tasks.ravel(), own, tasks.ravel()])
    edges = [np.full(flat.shape, int(e), np.int64) for e in (Edge.PROGRAM, Edge.PROGRAM, Edge.COLLECTIVE)]
    more = np.zeros(3 * len(flat), np.int64)
    return replace(
        graph,
        kind=np.concatenate([graph.kind, np.full(len(flat), int(Kind.ARRIVAL)), np.full(count, int(Kind.HUB))]),
        rank=np.concatenate([graph.rank, graph.rank[tasks].ravel(), np.zeros(count, np.int64)]),
        row=np.concatenate([graph.row, graph.row[tasks].ravel(), np.full(count, -1)]),
        start=np.concatenate([start, arrived.ravel(), last]),
        dur=np.concatenate([dur, zeros]),
        release=np.concatenate([graph.release, zeros]),
        src=src, dst=dst, edge=np.concatenate([graph.edge, *edges]), lag=np.concatenate([graph.lag, more]),
        from_start=np.concatenate([graph.from_start, more.astype(bool)]),
    )  # fmt: skip


def _synchronised(graph: Graph, tasks: Ints) -> Graph:
    """Ranks' clocks moved so that the collectives' ends agree with the first rank's in the median."""
    end = (graph.start + graph.dur)[tasks]
    by = np.median(end[:, :1] - end, axis=0).astype(np.int64)
    return _moved(graph, by.tolist())


def _shifted(graph: Graph) -> Graph:
    """Times from the earliest start of a window."""
    return _moved(graph, [-min(s.start for s in graph.spans)] * len(graph.spans))


def _moved(graph: Graph, by: Sequence[int]) -> Graph:
    moves = np.array(by, np.int64)[graph.rank]
    spans = [
        replace(s, start=s.start + b, end=s.end + b, offset=s.offset + b) for s, b in zip(graph.spans, by, strict=True)
    ]
    release = np.where(graph.release != 0, graph.release + moves, 0)
    return replace(graph, start=graph.start + moves, release=release, spans=tuple(spans))
