"""What the replay of the baseline's trace predicts of levers: the step with what they remove taken out of it.

A trace of the CPU alone holds no device work to replay, and of many levers (fusion by a compiler, another memory
format) the replay knows nothing. For those the share of the step stands, as the levers state it.
"""

from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from hotlap.records.errors import RecordError
from hotlap.records.files import rank_folders, read_profile, read_steps
from hotlap.trace.answer import view_of
from hotlap.trace.files import trace_files
from hotlap.trace.replay import CHANGES, deflated, predicted, step_ns
from hotlap.trace.replay.assemble import window_graph
from hotlap.trace.replay.changes import Facts, facts
from hotlap.trace.replay.simulate import Costs, Plan, ordered, steps_ns

CLOSE: Final = 0.1
"""A replay that misses the step that it was made from by more than this predicts nothing: the aim is 3%."""
TYPICAL: Final = 0.25
"""The recorded steps, without what recording costs, may differ by this from the run's typical step; beyond it they are
others: on an H100 three steps of an uneven loader took 440 ms each, the typical one 107, and a free loader was
predicted to be worth 6.2 where it was worth 1.4."""
WAITS: Final = 0.1
"""Of a step: by so much waiting for data may differ in the recorded steps from the run's typical one. While a profiler
starts, workers fill their queues: of a small VAE three recorded steps waited 0.1 ms each, the typical one 5.3 of 8.6,
and since recording costs time too, their length did not tell."""
MOST_BYTES: Final = 256 << 20
"""Of trace files; larger ones take too long beside a tune."""


class WhatIf:
    """A replayed window. Changes compose, so that a lever is predicted on top of those that are in."""

    def __init__(self, plan: Plan, of: Facts, costs: Costs) -> None:
        self.plan, self.of, self.costs = plan, of, costs
        self.before_ns = step_ns(plan, costs)
        self.step_ms = cache(self._step_ms)
        self._changes = {name: change for name, _, change in CHANGES}

    def _step_ms(self, scenarios: frozenset[str]) -> float | None:
        """The step in ms with these made true, None where none of them changes anything."""
        changes = [change for name, change in self._changes.items() if name in scenarios]
        after = predicted(self.plan, self.of, self.costs, *changes) if changes else None
        return None if after is None else after / 1e6


def read_whatif(folder: Path, unprofiled_ms: float | None, data_ms: float | None = None) -> WhatIf | None:
    """The replay of a profiled run; None where there is no trace of device work, it can't be replayed, or it shows
    other steps than the run's. data_ms: what a typical one of those waits for data."""
    try:
        if unprofiled_ms and data_ms is not None and not _waits_as_usual(folder, data_ms, unprofiled_ms):
            return None
        files = trace_files(folder)
        if sum(file.size for file in files) > MOST_BYTES:
            return None
        views = [view_of(file.load(lambda at: None)) for file in files]
    except RecordError:
        return None
    graph = window_graph(views)
    plan = ordered(graph)
    if plan is None or not any(len(span.work) for span in graph.spans):
        return None
    costs = Costs(graph.dur, graph.lag)
    measured = float(np.median(steps_ns(graph, graph.start + graph.dur)))
    if abs(step_ns(plan, costs) / measured - 1) > CLOSE:
        return None
    if unprofiled_ms is not None:
        costs = deflated(plan, costs, unprofiled_ms * 1e6)
        if abs(step_ns(plan, costs) / (unprofiled_ms * 1e6) - 1) > TYPICAL:
            return None
    return WhatIf(plan, facts(graph), costs)


def _waits_as_usual(folder: Path, data_ms: float, step_ms: float) -> bool:
    """Whether the recorded steps wait for data about as long as the run's do; True where that is not known."""
    for rank in rank_folders(folder)[:1]:
        profile = read_profile(rank)
        first = None if profile is None else profile.first_step
        if profile is None or first is None:
            break
        steps = [step for step in read_steps(rank) if first <= step.step < first + profile.steps]
        waits = [step.phases.data for step in steps if step.phases is not None and step.phases.data is not None]
        return not waits or abs(fmean(waits) - data_ms) <= WAITS * step_ms
    return True
