"""Earliest start times of a graph's tasks: longest paths, in an order in which every task follows what it waits for."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from .graph import Edge, Graph, Ints, Kind

NEVER: Final = -(2**60)
"""The lag of an edge that a change removes."""
DELAYS_NS: Final = {
    Edge.PROGRAM: (0, 0),
    Edge.HANDOVER: (0, 0),
    Edge.LAUNCH: (50_000, 7_000),
    Edge.STREAM: (20_000, 1_000),
    Edge.EVENT: (20_000, 1_500),
    Edge.SYNC: (50_000, 5_000),
    Edge.COLLECTIVE: (20_000, 0),
}
"""The longest delay an edge may keep from the clock: what launches, events and returns cost. Anything longer is a wait
that the graph does not know of; it is left out, so that the unchanged replay shows it as error instead of hiding it.
And what is usual where the trace does not show it, about as in the H100 and H200 traces."""
OVERLAP_NS: Final = 50_000
"""How long work may start before its stream's previous work ends (dependent launch, branches of a CUDA graph)."""

UNWAITED_NS: Final = 10_000
"""The most that a call which waits costs when there is nothing to wait for."""


@dataclass(frozen=True)
class Costs:
    """What a change changes: durations of tasks and lags of edges."""

    dur: Ints
    lag: Ints


@dataclass(frozen=True)
class Plan:
    """A graph ready to simulate: tasks in order, and for each its incoming edges. An edge's source is 2 * task for its
    start and 2 * task + 1 for its end."""

    graph: Graph
    order: list[int]
    first: list[int]
    edges: Ints
    source: list[int]


def fitted(graph: Graph) -> Graph:
    """The graph with lags from the measured times.

    What is usual for a kind of edge is the median delay of those edges that alone can explain when their task started:
    all others into it had let go longer ago than their bound. The edge that explains a start best, by what is usual,
    carries the delay that was seen, up to its bound; others carry what is usual, never more than was seen. Where a task
    starts as soon as its thread gets there, no other edge explains it.
    """
    slack, count = graph.start[graph.dst] - graph.source_time, len(graph)
    fit = ~np.isin(graph.edge, [Edge.PROGRAM, Edge.HANDOVER])
    at_once = np.bincount(graph.dst[~fit & (slack <= 0)], minlength=count) > 0
    bound = np.array([DELAYS_NS[kind][0] for kind in Edge], np.int64)[graph.edge]
    near = np.bincount(graph.dst[fit & (slack <= bound)], minlength=count)
    sure = fit & (slack <= bound) & (near[graph.dst] == 1) & ~at_once[graph.dst]
    usual = np.array([_usual(kind, slack[sure & (graph.edge == kind)]) for kind in Edge], np.int64)[graph.edge]
    best = np.full(count, 2**62, np.int64)
    np.minimum.at(best, graph.dst[fit], (slack - usual)[fit])
    binding = fit & (slack - usual == best[graph.dst]) & ~at_once[graph.dst]
    low = np.where(graph.edge == Edge.STREAM, -OVERLAP_NS, 0)
    seen = np.clip(slack, low, np.where(binding, bound, usual))
    return replace(graph, lag=np.where(fit, seen, graph.lag))


def _usual(kind: Edge, delays: Ints) -> int:
    return max(0, int(np.median(delays))) if len(delays) else DELAYS_NS[kind][1]


def ordered(graph: Graph) -> Plan | None:
    """The plan; None where tasks wait for one another in a circle, as in a trace that contradicts itself."""
    count = len(graph)
    into = np.argsort(graph.dst, kind="stable")
    first = np.searchsorted(graph.dst[into], np.arange(count + 1)).tolist()
    out = np.argsort(graph.src, kind="stable")
    out_first = np.searchsorted(graph.src[out], np.arange(count + 1)).tolist()
    targets, waiting = graph.dst[out].tolist(), np.bincount(graph.dst, minlength=count).tolist()
    ready, order = deque(i for i in range(count) if not waiting[i]), []
    while ready:
        task = ready.popleft()
        order.append(task)
        for target in targets[out_first[task] : out_first[task + 1]]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    source = (2 * graph.src + ~graph.from_start)[into].tolist()
    return Plan(graph, order, first, into, source) if len(order) == count else None


def simulate(plan: Plan, costs: Costs) -> tuple[Ints, Ints]:
    """(start, end) of each task."""
    lag, dur, release = costs.lag[plan.edges].tolist(), costs.dur.tolist(), plan.graph.release.tolist()
    time, source, first = [0] * (2 * len(plan.graph)), plan.source, plan.first
    for task in plan.order:
        start = release[task]
        for edge in range(first[task], first[task + 1]):
            at = time[source[edge]] + lag[edge]
            if at > start:  # noqa: PLR1730 - max() takes three times as long here
                start = at
        time[2 * task] = start
        time[2 * task + 1] = start + dur[task]
    both = np.array(time, np.int64)
    return both[0::2], both[1::2]


def steps_ns(graph: Graph, end: Ints) -> list[float]:
    """Each rank's time a step: from the end of the work that its window began with (or the window's start, if later)
    to the end of all that the window launched. With device work in flight at both ends this is the loop's period."""
    found = []
    for span in graph.spans:
        begin = max(span.start, int(end[span.prior].max(initial=span.start)))
        done = max(int(end[span.host]), int(end[span.work].max(initial=begin)))
        found.append((done - begin) / span.steps)
    return found


def unwaited(graph: Graph) -> Graph:
    """The graph with calls that waited at the usual cost of those that had nothing to wait for."""
    waits = graph.edge == Edge.SYNC
    freed = np.full(len(graph), NEVER, np.int64)
    np.maximum.at(freed, graph.dst[waits], graph.source_time[waits])
    call_of = np.full(len(graph), -1, np.int64)
    program = (graph.edge == Edge.PROGRAM) & (graph.kind[graph.src] == Kind.CALL)
    call_of[graph.dst[program]] = graph.src[program]
    returns = np.unique(graph.dst[waits])
    calls = call_of[returns]
    returns, calls = returns[calls >= 0], calls[calls >= 0]
    blocked = freed[returns] > graph.start[calls]
    idle = graph.dur[calls[~blocked]]
    usual = int(np.median(idle)) if len(idle) else UNWAITED_NS
    dur = graph.dur.copy()
    dur[calls[blocked]] = np.minimum(dur[calls[blocked]], min(usual, UNWAITED_NS))
    return replace(graph, dur=dur)
