"""Where the steps of a trace are, with and without `ProfilerStep#`.

Host steps are taken from, in this order: `ProfilerStep#` annotations; the ends of `Optimizer.step#` annotations (in
cycles, where several optimizers take turns); ranges that somebody named `step 3`, `iteration`, `train_iter#7` (as in
traces of nsys, which know no optimizer). A trace without them is taken as a whole.

The host may run ahead of the device. Where the work of the last step ends later than its host step by more than AHEAD
of all steps together, steps are cut on the device's clock instead: each begins with the first work that it launched,
and the last ends with its last work. The device is then never idle at a cut, so nothing is lost there.
"""

import itertools
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from hotlap.records.trace import Window

from .tables import WORK, Trace

Ints = npt.NDArray[np.int64]
Steps = list[tuple[int, int]]

AHEAD: Final = 0.05
NAMED: Final = r"(?i)^(train(ing)?[ _-]?)?(step|iter|iteration)[ _:#-]*\d*$"
"""Names that people give to the range around a step."""


def find_windows(trace: Trace) -> tuple[Window, Window]:
    """(window, host window): the steps to read device time in, and the same steps on the host's clock.

    They are the same unless the host runs ahead of the device.
    """
    steps, found_by = _host_steps(trace)
    if not steps:
        whole = _whole(trace)
        return whole, whole
    host = _window(steps, found_by)
    on_device = _on_device(trace, steps)
    if on_device and on_device[-1][1] - steps[-1][1] > AHEAD * (steps[-1][1] - steps[0][0]):
        return _window(on_device, found_by), host
    return host, host


def _window(steps: Steps, found_by: str) -> Window:
    return Window(start_ns=steps[0][0], end_ns=steps[-1][1], found_by=found_by, steps=tuple(steps))


def _whole(trace: Trace) -> Window:
    """From the first event to the last."""
    start, time = pl.col("start"), pl.col("time")
    tables = [table.select(start, (start + pl.col("dur")).alias("end")) for table in (trace.host, trace.device)]
    every = pl.concat([*tables, trace.memory.select(time.alias("start"), (time + 1).alias("end"))])
    begin, end = every.select(start.min(), pl.col("end").max()).row(0)
    return Window(start_ns=begin or 0, end_ns=end or 0, found_by="none")


def _host_steps(trace: Trace) -> tuple[Steps, str]:
    notes = trace.host.filter(pl.col("cat") == "annotation")
    marked = notes.filter(pl.col("name").str.starts_with("ProfilerStep#"))
    if len(marked):
        starts, ends = marked["start"].to_numpy(), (marked["start"] + marked["dur"]).to_numpy()
        return _end_to_end(starts, ends), "ProfilerStep"
    stepping = notes.filter(pl.col("name").str.starts_with("Optimizer.step#"))
    steps = _by_optimizer(stepping)
    if steps:
        return steps, "optimizer"
    named = notes.filter(pl.col("name").str.contains(NAMED))
    steps = _end_to_end(named["start"].to_numpy(), (named["start"] + named["dur"]).to_numpy())
    if len(steps) > 1 and all(one[1] <= other[0] for one, other in itertools.pairwise(steps)):
        return steps, "annotation"
    return [], "none"


def _end_to_end(starts: Ints, ends: Ints) -> Steps:
    """Steps that end where the next begins, if the pause between them is short against them."""
    steps = []
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        following = int(starts[index + 1]) if index + 1 < len(starts) else end
        steps.append((start, following if end <= following < end + (end - start) else end))
    return [step for step in steps if step[1] > step[0]]


def _by_optimizer(stepping: pl.DataFrame) -> Steps:
    """From the end of one optimizer step to the end of the next, whole cycles only."""
    if len(stepping) < 2:
        return []
    ends, outer = [], -1
    for start, dur in zip(stepping["start"].to_list(), stepping["dur"].to_list(), strict=True):
        if start + dur > outer:  # a subclass calls its parent's step inside its own
            outer = start + dur
            ends.append(outer)
    cycle = _cycle(stepping["name"].to_list()) if len(ends) == len(stepping) else 1
    cuts = ends[::cycle]
    return list(itertools.pairwise(cuts))


def _cycle(names: list[str]) -> int:
    """How many optimizer steps make a turn of the loop: the shortest period of their names."""
    for period in range(1, min(8, len(names) // 2) + 1):
        if all(one == other for one, other in zip(names, names[period:], strict=False)):
            return period
    return 1


def _on_device(trace: Trace, steps: Steps) -> Steps:
    """The same steps by the work that they launched; none where a step launched nothing that is linked."""
    work = trace.device.filter(pl.col("cat").is_in(WORK) & (pl.col("launch") >= 0))
    if not len(work):
        return []
    launched = trace.host["start"].to_numpy()[work["launch"].to_numpy()]
    starts = work["start"].to_numpy()
    ends = starts + work["dur"].to_numpy()
    order = np.argsort(launched, kind="stable")
    launched, starts, ends = launched[order], starts[order], ends[order]
    found: Steps = []
    for first, last in np.searchsorted(launched, np.array(steps)).tolist():
        if first == last:
            return []
        found.append((int(starts[first:last].min()), int(ends[first:last].max())))
    begins = [start for start, _ in found]
    if begins != sorted(set(begins)):
        return []
    return [*itertools.pairwise(begins), found[-1]]
