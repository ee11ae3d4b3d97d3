"""From views to the graph of their windows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from hotlap.records.trace import Window

from ..steps import find_windows
from ..view import View
from .device import device_tasks, event_edges, sync_edges
from .graph import Builder, Edge, Graph, Ints, Kind, Span
from .host import host_tasks
from .simulate import fitted, unwaited

STEPS: Final = 5
"""A longer window is replayed by this many of its steps."""
MOST_WORK: Final = 60_000
"""Steps with more device work than this, over all ranks, are replayed by fewer."""
KIND: Final = ("name", "dtype", "in_elements", "out_elements", "group_size")
"""What collectives of one kind share."""


def window_graph(views: Sequence[View]) -> Graph:
    """The graph of the views' windows (a view a rank), or of STEPS typical steps of them; times from the earliest."""
    views = [replace(view, window=host_window(view)) for view in views]
    block, build, spans = typical(views), Builder(), []
    for build.rank, view in enumerate(views):
        build.offset = view.trace.base_ns - views[0].trace.base_ns
        spans.append(_rank(build, view, *block))
    graph = build.graph(spans)
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


def _rank(build: Builder, view: View, first: int, end: int) -> Span:
    """Adds the tasks and edges of one view."""
    steps = view.window.steps[first:end]
    start, stop = (steps[0][0], steps[-1][1]) if steps else (view.window.start_ns, view.window.end_ns)
    host = host_tasks(build, view, start, stop)
    device = device_tasks(build, view, host, start, stop)
    sync_edges(build, view, host, device)
    event_edges(build, host, device)
    work, prior = device.task[~device.prior], device.task[device.prior]
    moved = build.offset
    return Span(view, start + moved, stop + moved, max(1, len(steps)), host.last, work, prior, moved)


def _matched(graph: Graph) -> Ints:
    """Tasks of the same collective on all ranks, shape (collectives, ranks): the k-th of its kind in each window."""
    if len(graph.spans) < 2:
        return np.empty((0, len(graph.spans)), np.int64)
    each = []
    for span in graph.spans:
        trace, rows = span.view.trace, graph.row[span.work]
        collective = trace.device["collective"].gather(rows)
        tasks = pl.DataFrame({"task": span.work, "start": graph.start[span.work], "collective": collective})
        kinds = trace.collectives.select(pl.int_range(pl.len(), dtype=pl.Int32).alias("collective"), *KIND)
        known = tasks.sort("start", maintain_order=True).join(kinds, on="collective", maintain_order="left")
        each.append(known.select("task", *KIND, pl.int_range(pl.len()).over(*KIND).alias("number")))
    found = each[0]
    for rank, other in enumerate(each[1:]):
        found = found.join(other, on=[*KIND, "number"], maintain_order="left", suffix=f" {rank}")
    return found.drop(*KIND, "number").to_numpy().astype(np.int64)


def _collectives(graph: Graph, tasks: Ints) -> Graph:
    """Splits each collective into arrival and transfer, with clocks set so that collectives end together."""
    if not len(tasks):
        return graph
    graph = _synchronised(graph, tasks)
    arrived, end = graph.start[tasks], graph.start + graph.dur
    last = arrived.max(axis=1)
    start, dur = graph.start.copy(), graph.dur.copy()
    start[tasks] = last[:, None]
    dur[tasks] = np.maximum(end[tasks] - last[:, None], 0)
    arrival = len(graph) + np.arange(tasks.size, dtype=np.int64)
    renamed = np.arange(len(graph))
    renamed[tasks] = arrival.reshape(tasks.shape)
    build = Builder(replace(graph, start=start, dur=dur, dst=renamed[graph.dst]))
    build.rank = graph.rank[tasks].ravel()
    build.add(Kind.ARRIVAL, graph.row[tasks].ravel(), arrived.ravel(), 0)
    build.rank = 0
    hubs = np.repeat(build.add(Kind.HUB, -1, last, 0), tasks.shape[1])
    build.link(Edge.PROGRAM, arrival, tasks.ravel())
    build.link(Edge.PROGRAM, arrival, hubs)
    build.link(Edge.COLLECTIVE, hubs, tasks.ravel())
    return build.graph(graph.spans)


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
