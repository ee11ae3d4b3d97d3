"""Load over the ranks: who is slow, what it costs the others, and why.

What is counted are calls that no rank can leave before all have arrived (all_reduce and its like; `collectives.match`).
The last to arrive costs each other rank the time from the arrival before the last to its own, as far as that rank's
device computes nothing meanwhile: what the others would have had to wait anyway, or hid behind compute, is no cost. A
step's cost of a rank is the sum over the step's calls at which it was last, as a mean over the others.

A rank is the straggler if

* its cost is above 2% of the step, and
* it is the dearest rank in more than half of the steps, and
* it is beyond noise: noise is what all others together cost, step by step. Mean of (its cost - theirs) over the steps
  is above zero by a one-sided t-test at 2.5%; two steps at least.

Work that varies (batches of unequal length) makes another rank late each step: a wait, no straggler; `imbalance` shows
unequal compute. Ranks that are late together (a slow host) cost nothing each, for without one of them the others would
still be late: that is said, and none is named. Who is late because another made it late (pipelines; groups that cross)
is taken for late itself.

Why: the straggler beside the median of the others, per step. The cause is the largest excess of: its wait for input (in
`enumerate(DataLoader)#` ranges), its copies outside compute, its compute (more kernels, or the same ones slower), and
self time of one function of the host. Where none makes up half of the cost, that is said.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from hotlap.records.diagnosis import Place
from hotlap.records.durations import ms
from hotlap.records.trace import RankLoad, Ranks
from hotlap.trace import intervals

from . import totals
from .collectives import SYNCHRONISING, Calls, Lane
from .shares import Share

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WORTH: Final = 0.02
"""Share of the step from which a late rank is named."""
CONFIDENCE: Final = 0.975
"""Of the test, one-sided: of two alike ranks one or the other is then named in 5% of cases; of more, seldomer."""
FEW: Final = 0.2
"""Share of the longest wait below which a rank is itself late."""
ALIKE: Final = 0.01
"""Counts of kernels that differ by less are equal."""


@dataclass(frozen=True)
class Why:
    """A cause of lateness. excess_ns: a step, over the median of the others."""

    excess_ns: int
    said: str
    where: Place | None = None
    cause: str | None = None


def ranks(calls: Calls) -> Ranks:
    """The ranks beside each other."""
    each = calls.shares
    late = _late(calls)
    loads = tuple(msgspec.structs.replace(one.load, late_ns=late.get(one.rank)) for one in each)
    balance = Ranks(loads=loads, imbalance=_imbalance(loads))
    if len(each) < 2 or not late:
        return msgspec.structs.replace(
            balance, why="one rank only" if len(each) < 2 else "no collective is known on two ranks"
        )
    return _judged(calls, balance)


def _judged(calls: Calls, balance: Ranks) -> Ranks:
    costs = step_costs(calls)
    lane = int(np.argmax(costs.sum(axis=0)))
    cost = costs[:, lane].mean()
    step = float(np.mean([load.step_ns for load in balance.loads]))
    worst = f"rank {calls.lanes[lane].share.rank} costs most, {_ms(cost)} a step ({cost / step:.1%})"
    if cost <= WORTH * step:
        return msgspec.structs.replace(balance, why=_together(calls, step) or f"no rank is late: {worst}")
    if (against := _doubt(costs, lane)) is not None:
        return msgspec.structs.replace(balance, why=f"no rank is late beyond noise: {worst}, {against}")
    mine = calls.lanes[lane].share
    reason = _why(mine, [one for one in calls.shares if one is not mine], round(cost))
    told = {"cause": reason.cause, "why": reason.said, "where": reason.where}
    return msgspec.structs.replace(balance, straggler=mine.rank, cost_ns=round(cost), **told)


def _doubt(costs: Floats, lane: int) -> str | None:
    """What speaks against the rank as the straggler; None if nothing does."""
    steps = len(costs)
    if steps < 2:
        return "seen in one step only"
    most = int((costs.argmax(axis=1) == lane).sum())
    if 2 * most <= steps:
        return f"but only in {most} of {steps} steps"
    lead = 2 * costs[:, lane] - costs.sum(axis=1)
    error = float(lead.std(ddof=1)) / math.sqrt(steps)
    if lead.mean() <= stats.t.ppf(CONFIDENCE, steps - 1) * error:
        return f"while the others cost {_ms(costs.sum(axis=1).mean() - costs[:, lane].mean())}"
    return None


def _together(calls: Calls, step: float) -> str | None:
    """Several ranks that are late together: no one of them is the straggler, but the others do wait."""
    count = calls.lanes[0].share.window.count
    waits = {rank: ns / count for rank, ns in waited(calls).items()}
    longest = max(waits.values(), default=0.0)
    if longest <= WORTH * step:
        return None
    late = sorted(rank for rank, ns in waits.items() if ns <= FEW * longest)
    said = f"some ranks wait {_ms(longest)} a step, but not for one rank alone"
    return f"{said}: {', '.join(map(str, late))} are late together" if len(late) > 1 else said


def _ms(ns: float) -> str:
    return ms(ns / 1e6)


# lateness


def step_costs(calls: Calls) -> Floats:
    """What the others wait for each lane, in ns: steps in rows, lanes in columns."""
    each = calls.parts.join(_counted(calls).select("call", "late", "second", "last", "parts"), on="call")
    each = each.filter(pl.col("lane") != pl.col("late"))
    costs = np.zeros((calls.lanes[0].share.window.count, len(calls.lanes)))
    steps = _steps(calls.lanes[0], each["last"].to_numpy())
    np.add.at(costs, (steps, each["late"].to_numpy()), _exposed(calls, each, "second") / (each["parts"].to_numpy() - 1))
    return costs


def waited(calls: Calls) -> dict[int, int]:
    """What each rank waits for later ones with nothing to compute: ns over its window, summed over its devices. Only
    ranks that have a call in common with another are there."""
    each = calls.parts.join(_counted(calls).select("call", "last"), on="call")
    waits: dict[int, int] = {}
    for (index,), rows in each.group_by("lane"):
        lane = calls.lanes[int(str(index))]
        starts, ends = (rows[column].to_numpy() - lane.clock_ns for column in ("start", "last"))
        window = lane.share.window
        spent = intervals.clip(intervals.union(starts, ends), window.start_ns, window.end_ns)
        alone = intervals.difference(spent, lane.device.compute).total
        waits[lane.share.rank] = waits.get(lane.share.rank, 0) + alone
    return waits


def _counted(calls: Calls) -> pl.DataFrame:
    return calls.complete.filter(pl.col("name").is_in(SYNCHRONISING))


def _exposed(calls: Calls, each: pl.DataFrame, since: str) -> Ints:
    """For kernels: how long from `since` to `last` its lane computes nothing, within its window."""
    lanes, starts, ends = (each[column].to_numpy() for column in ("lane", since, "last"))
    waits = np.zeros(len(each), np.int64)
    for index, lane in enumerate(calls.lanes):
        mine, window = lanes == index, lane.share.window
        first = np.clip(starts[mine] - lane.clock_ns, window.start_ns, window.end_ns)
        last = np.clip(ends[mine] - lane.clock_ns, window.start_ns, window.end_ns)
        waits[mine] = last - first - intervals.covered(lane.device.compute, first, last)
    return waits


def _steps(lane: Lane, times: Ints) -> Ints:
    """The step of the first rank in which each time lies; those outside count to the nearest."""
    starts = np.array([start for start, _ in lane.share.window.steps] or [lane.share.window.start_ns], np.int64)
    return np.maximum(np.searchsorted(starts + lane.clock_ns, times, side="right") - 1, 0)


def _late(calls: Calls) -> dict[int, int]:
    """Mean arrival after the first rank's, by rank."""
    each = calls.parts.join(_counted(calls).select("call", "first"), on="call")
    late = each.group_by("lane").agg((pl.col("start") - pl.col("first")).mean().alias("late"))
    return {calls.lanes[lane].share.rank: round(ns) for lane, ns in late.iter_rows()}


# why


def _imbalance(loads: Sequence[RankLoad]) -> float:
    compute = [load.compute_ns for load in loads]
    return max(compute) * len(compute) / sum(compute) - 1 if any(compute) else 0.0


def _why(late: Share, others: Sequence[Share], cost: int) -> Why:
    worst = max((cause(late, others) for cause in CAUSES), key=lambda why: why.excess_ns)
    if 2 * worst.excess_ns < cost:
        return Why(0, f"no single cause explains half of it; the largest: {worst.said}")
    return worst


def _beside(mine: int, others: Sequence[int]) -> tuple[int, str]:
    usual = round(float(np.median(others)))
    return mine - usual, f"{_ms(mine)} a step against {_ms(usual)}"


def _slow_input(late: Share, others: Sequence[Share]) -> Why:
    excess, said = _beside(late.load.input_ns, [other.load.input_ns for other in others])
    loaders = (place for name, place in late.places.items() if re.search(totals.INPUT, name))
    return Why(excess, f"its input takes {said}", next(loaders, None), "input")


def _slow_copies(late: Share, others: Sequence[Share]) -> Why:
    excess, said = _beside(late.copies_ns, [other.copies_ns for other in others])
    return Why(excess, f"its copies take {said}", cause="copies")


def _slow_compute(late: Share, others: Sequence[Share]) -> Why:
    excess, said = _beside(late.load.compute_ns, [other.load.compute_ns for other in others])
    usual = float(np.median([other.kernels for other in others]))
    alike = abs(late.kernels - usual) <= ALIKE * usual
    larger = "with as many kernels: they are larger, or the device is slower"
    counted = larger if alike else f"with {late.kernels:.0f} kernels, not {usual:.0f}"
    return Why(excess, f"its compute takes {said}, {counted}", cause="compute")


def _slow_host(late: Share, others: Sequence[Share]) -> Why:
    """The function of the host with the largest excess; waits for input and calls of the runtime are not among them."""
    if not late.host:
        return Why(0, "nothing on its host")
    by_name = {name: _beside(ns, [other.host.get(name, 0) for other in others]) for name, ns in late.host.items()}
    name = max(by_name, key=lambda key: (by_name[key][0], key))
    said = f"its host is in {totals.spoken(name)} for {by_name[name][1]}"
    cause = "python" if name == totals.STEP else "host"
    return Why(by_name[name][0], said, late.places.get(name), cause)


CAUSES: Final = (_slow_input, _slow_copies, _slow_compute, _slow_host)
