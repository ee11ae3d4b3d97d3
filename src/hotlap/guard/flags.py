"""Red flags: what of a series is to be looked at now. A rule is a function; the list at the end has all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from statistics import median
from typing import Final

from hotlap.records.history import ChangePoint, Entry, Flag, Trend

NOUN: Final = {"step": "a step", "data": "waiting for data", "memory": "peak memory", "startup": "the start"}
RECENT: Final = 30
"""Runs for which a change is news."""
FAILURES: Final = 2
SPREAD: Final = 1.5
"""By how much the spread of steps has to widen."""
LATEST: Final = 3
BEFORE: Final = 5
Found = tuple[Mapping[str, Trend], Sequence[Entry]]
"""The trends of a series by measure, and its runs in order."""


def flags(trends: Mapping[str, Trend], entries: Sequence[Entry]) -> list[Flag]:
    """All flags of a series; entries: its runs in order."""
    return [flag for rule in RULES for flag in rule((trends, entries))]


def grown(found: Found) -> Iterator[Flag]:
    """The last change of a measure made it more, not long ago."""
    for measure, one in found[0].items():
        if one.changes and one.changes[-1].ratio > 1 and len(one.values) - one.changes[-1].at <= RECENT:
            yield Flag(rule="grown", text=f"{NOUN[measure]}: {one.changes[-1].ratio:.2f}× {since(one.changes[-1])}")


def drifting(found: Found) -> Iterator[Flag]:
    """A measure grows a little with each commit."""
    for measure, one in found[0].items():
        if one.drift is not None and one.drift.total > 1:
            said = f"{one.drift.total - 1:+.1%} over {one.drift.commits} commits, none of them large"
            yield Flag(rule="drifting", text=f"{NOUN[measure]}: {said}")


def failing(found: Found) -> Iterator[Flag]:
    """The latest runs fail, and did not before."""
    failed = len([*takewhile(lambda one: one.failed, reversed(found[1]))])
    if FAILURES <= failed < len(found[1]):
        yield Flag(rule="failing", text=f"the last {failed} runs failed; the one before did not")


def unsteady(found: Found) -> Iterator[Flag]:
    """Steps of the latest runs differ more among themselves."""
    widths = [one.p90_ms / one.p10_ms for one in found[1] if one.p10_ms and one.p90_ms]
    if len(widths) >= LATEST + BEFORE:
        now, then = median(widths[-LATEST:]), median(widths[:-LATEST])
        if now - 1 > SPREAD * (then - 1) and now > SPREAD:
            yield Flag(
                rule="unsteady", text=f"steps: p90 is {now:.2f}× p10 in the last {LATEST} runs, {then:.2f}× before"
            )


def rebound(found: Found) -> Iterator[Flag]:
    """Something else limits the latest runs."""
    bounds = [one.bound for one in found[1] if one.bound not in {None, "unknown"}]
    last, before = {*bounds[-LATEST:]}, bounds[:-LATEST][-BEFORE:]
    if len(last) == 1 and len(before) == BEFORE and len({*before}) == 1 and last != {*before}:
        yield Flag(rule="rebound", text=f"{last.pop()}-bound in the last {LATEST} runs, {before[0]}-bound before")


def since(change: ChangePoint) -> str:
    """`since 1a2b3c4`."""
    return f"since {change.commit_after[:10]}" if change.commit_after else "since a run of no known commit"


RULES: Final[tuple[Callable[[Found], Iterator[Flag]], ...]] = (grown, drifting, failing, unsteady, rebound)
