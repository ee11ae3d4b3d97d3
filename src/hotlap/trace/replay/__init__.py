"""What-if: the window replayed from its tasks and what they wait for, as it was and with causes removed.

The graph (`assemble.window_graph`) holds host threads in program order, device streams in order, and the edges between
them: launches, synchronisation, events between streams, hand-over to autograd's thread, collectives over ranks. Its
longest path (`simulate`) gives all start times; only durations, and delays up to a bound of tens of microseconds, come
from the clock, so the unchanged replay is a test of the graph. The method is that of Daydream (Zhu et al., ATC 2020)
and dPRO (Hu et al., MLSys 2022).

The step is the time from the end of the work that the window began with to the end of all that it launched, over its
steps: the loop's period, also where the host runs ahead. Of several ranks it is the median, of two the shorter: only a
change that parts them tells them apart, and then the longer is the straggler's.

Profiling makes host time longer, by a microsecond or so an event. Where the unprofiled step is given, the host's
durations are scaled by one factor such that the replay takes as long, and changes are predicted from there.
"""

from collections.abc import Sequence
from statistics import median_low
from typing import Final

import numpy as np

from hotlap.records.trace import Replay, WhatIf

from ..view import View
from .assemble import window_graph
from .changes import (
    Change,
    Facts,
    device_infinitely_fast,
    free_input,
    fused_optimizer,
    hidden_ns,
    matmuls_in,
    no_launch_cost,
    no_straggler,
    no_syncs,
    perfect_overlap,
)
from .graph import Graph, Kind
from .simulate import Costs, Plan, ordered, simulate, steps_ns

CHANGES: Final[tuple[tuple[str, str, Change], ...]] = (
    ("no_syncs", "the host waits for no device work", no_syncs),
    ("free_input", "batches are on the device at once", free_input),
    ("no_launch_cost", "the device waits for the host only for input", no_launch_cost),
    ("device_infinitely_fast", "device work takes no time", device_infinitely_fast),
    ("tf32_matmuls", "fp32 matrix products in TF32", matmuls_in("tf32")),
    ("bf16_matmuls", "fp32 matrix products in bf16, each with a cast", matmuls_in("bf16")),
    ("perfect_overlap", "communication hidden behind compute", perfect_overlap),
    ("no_straggler", "all ranks as fast as the median one", no_straggler),
    ("fused_optimizer", "the optimizer's step in one pass over the parameters", fused_optimizer),
)

EVENT_NS: Final = 4_000
"""The most that recording one event of the host costs: 1.24 µs in the mean of tiny-gpt-launch-bound-stacks-h100 (a step
of 12,400 events takes 34.9 ms with the profiler and 19.5 ms without), 3.7 µs on a virtual machine with slow clocks
(4,300 events, 31.9 and 15.9 ms)."""
CLOSE: Final = 0.005


def replay(views: Sequence[View], unprofiled_ms: float | None = None) -> Replay | None:
    """The window of one rank, or of all of a job, replayed. None where it holds no work, or contradicts itself."""
    graph = window_graph(views)
    plan = ordered(graph)
    if plan is None or not any(len(span.work) for span in graph.spans):
        return None
    of, costs = Facts(graph), Costs(graph.dur, graph.lag)
    measured = median_low(steps_ns(graph, graph.start + graph.dur))
    replayed = step_ns(plan, costs)
    if unprofiled_ms is not None:
        costs = deflated(plan, costs, unprofiled_ms * 1e6)
    before = step_ns(plan, costs)
    found = ((name, meaning, predicted(plan, of, costs, change)) for name, meaning, change in CHANGES)
    predictions = [
        WhatIf(change=name, meaning=meaning, ms=after / 1e6, gain=before / max(after, 1.0))
        for name, meaning, after in found
        if after is not None
    ]
    return Replay(measured_ms=measured / 1e6, replayed_ms=replayed / 1e6, predictions=tuple(predictions))


def step_ns(plan: Plan, costs: Costs) -> float:
    """The step at some costs."""
    return median_low(steps_ns(plan.graph, simulate(plan, costs)[1]))


def predicted(plan: Plan, of: Facts, costs: Costs, change: Change) -> float | None:
    """The step in ns after a change; None where it changes nothing."""
    after = change(of, costs)
    if after is None:
        return None
    least = min(hidden_ns(of, costs), step_ns(plan, costs)) if change is perfect_overlap else 0.0
    return max(step_ns(plan, after), least)


def deflated(plan: Plan, costs: Costs, step: float) -> Costs:
    """The costs with host durations scaled down, no more than needed for the step to take this long and than profiling
    can explain."""
    host = np.isin(plan.graph.kind, [int(Kind.HOST), int(Kind.CALL)])

    def scaled(factor: float) -> Costs:
        return Costs(np.where(host, (costs.dur * factor).astype(np.int64), costs.dur), costs.lag)

    low, high = least_factor(plan.graph), 1.0
    goal = max(step, step_ns(plan, scaled(low)) * (1 + CLOSE))  # where the host does not decide, leave it as it is
    if step_ns(plan, costs) <= goal:
        return costs
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if step_ns(plan, scaled(middle)) <= goal else (low, middle)
    return scaled(low)


def least_factor(graph: Graph) -> float:
    """What is left of host time if every event of the host in the windows cost EVENT_NS to record."""
    events = [
        ((s.view.host("start") + s.offset >= s.start) & (s.view.host("start") + s.offset < s.end)).sum()
        for s in graph.spans
    ]
    host = int(graph.dur[np.isin(graph.kind, [int(Kind.HOST), int(Kind.CALL)])].sum())
    return max(0.0, 1 - float(sum(events)) * EVENT_NS / host) if host else 1.0
