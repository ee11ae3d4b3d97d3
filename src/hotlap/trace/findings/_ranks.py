"""Causes that show only beside other ranks, and what all ranks have in common.

The time that ranks wait in collectives for one that is late is the `straggler`'s. What makes that rank late is seen in
its own trace too, as idle time: that is told with the straggler, with its levers, and taken off the finding that has
it, as no two findings claim the same time.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Final

import msgspec

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import Ranks, RankTrace

from ..analyses.ranks import WORTH
from ..scaling import idle_ms, idle_scale, mean_ms, scale, share, step_ms
from . import LEAST_SHARE

AT_LINES: Final = ("sync",)
"""Findings of which a rank has one at each line; of all others it has one at most."""
OWN: Final = {
    "input": ("input",),
    "copies": ("h2d", "offloaded-activations"),
    "python": ("host-code",),
    "host": ("host-code", "launch", "sync", "allocator"),
}
"""Causes of lateness, and the findings of the late rank that are the same time."""
WHY: Final = "a collective begins when the last rank arrives, so all ranks run at the speed of the slowest"


def of_all(answers: Sequence[RankTrace], balance: Ranks) -> tuple[Finding, ...]:
    """The findings of a job, dearest first: those of its ranks, one of each cause, and those between them."""
    each = [finding for one in answers for finding in one.findings]
    late = next((one for one in answers if one.rank == balance.straggler), None)
    if late is None:
        found = [*merged(each), *imbalance(answers)]
    else:
        named, own = straggler(answers, late, balance), _own(late, balance)
        if own is not None:
            named = msgspec.structs.replace(named, where=named.where or own.where, levers=own.levers)
            each = [finding for finding in each if finding is not own] + _rest(own, named, late)
        found = [*merged(each), named]
    return tuple(sorted(found, key=lambda finding: (-(finding.cost_ms or 0.0), -finding.share)))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The same cause once, from the rank where it costs most, at the dearest place that is known of it."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        key = (one.id, one.title, one.where) if one.id in AT_LINES else (one.id,)
        groups.setdefault(key, []).append(one)
    return [_one(sorted(group, key=lambda one: (-(one.cost_ms or 0.0), -one.share))) for group in groups.values()]


def _one(group: list[Finding]) -> Finding:
    where = next((one.where for one in group if one.where is not None), None)
    return msgspec.structs.replace(group[0], where=where)


def straggler(answers: Sequence[RankTrace], late: RankTrace, balance: Ranks) -> Finding:
    """The rank that the others wait for. Of its lateness what its device does not do more than theirs is host time, and
    scaled as idle time is."""
    profiled = balance.cost_ns / 1e6
    device = min(profiled, max(0.0, _busy_ms(late) - median(_busy_ms(one) for one in answers if one is not late)))
    cost = min(step_ms(late), scale(late) * (device + (profiled - device) * idle_scale(late)))
    under = f" ({ms(profiled)} under the profiler)" if cost < 0.95 * profiled else ""
    return Finding(
        id="straggler",
        bound="communication",
        share=share(late, cost),
        cost_ms=cost,
        title=f"the other ranks wait for rank {late.rank}",
        where=balance.where,
        evidence=f"{ms(cost)} a step{under}; {balance.why}",
        why=WHY,
        instead="give every rank the same work; look at that rank's input, host and clocks",
    )


def _busy_ms(answers: RankTrace) -> float:
    """Device time of work that waits for nobody, ms a step of the trace."""
    return mean_ms(answers, sum(one.compute_ns + one.exposed_copy_ns for one in answers.breakdown))


def _own(late: RankTrace, balance: Ranks) -> Finding | None:
    """The late rank's own finding about what makes it late."""
    ids = OWN.get(balance.cause or "", ())
    return max((one for one in late.findings if one.id in ids), key=lambda one: one.cost_ms or 0.0, default=None)


def _rest(own: Finding, named: Finding, late: RankTrace) -> list[Finding]:
    """What is left of it beside the straggler."""
    cost = own.cost_ms or 0.0
    taken = min(named.cost_ms or 0.0, cost)
    said = f"{own.evidence}; {ms(taken)} of it is counted with rank {late.rank}, which the others wait for"
    left = max(0.0, own.share - share(late, taken))
    rest = msgspec.structs.replace(own, cost_ms=cost - taken, share=left, evidence=said)
    return [rest] if left >= LEAST_SHARE else []


def imbalance(answers: Sequence[RankTrace]) -> list[Finding]:
    """Ranks that wait for one another, none of them for one alone. Cost: what a rank waits, as a mean."""
    waits = [(one, idle_ms(one, one.waited_ns or 0)) for one in answers]
    cost = fmean(wait for _, wait in waits)
    most, longest = max(waits, key=lambda pair: pair[1])
    if share(most, cost) < WORTH:
        return []
    return [
        Finding(
            id="imbalance",
            bound="communication",
            share=share(most, cost),
            cost_ms=cost,
            title="the ranks wait for one another",
            where=most.talks_at,
            evidence=f"{ms(cost)} a step as a mean over ranks, most on rank {most.rank} ({ms(longest)}); the last rank "
            "changes, or several are late together",
            why=WHY,
            instead="give every rank the same work in each step: batches of equal length, equal shards; look at clocks",
        )
    ]
