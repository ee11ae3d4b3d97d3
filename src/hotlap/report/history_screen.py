"""What the history tells, on a screen: the last runs, and what changed."""

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from ..records.durations import ms
from ..records.history import ChangePoint, Entry, HistoryReport, HistoryRuns, Series, SeriesReport, Trend
from .console import Parts, Screen, Tabled, clean, columns, count, number, plain

MEASURES: Final = {"step": "a step", "data": "data wait", "memory": "memory", "startup": "start"}
LEAST: Final = 6
"""Runs from which a change can be told (`guard.changes`)."""
SHORT: Final = 10
"""Digits of a commit."""


def runs_screen(found: HistoryRuns) -> RenderableType:
    """A row a run, the latest first."""
    if not found.runs:
        return Screen(plain(f"no such run in {found.history}"))
    table = columns(
        "run", "began", "commit", "a step", "memory", "bound", "host", "command",
        right=("run", "a step", "memory"), wide=("command",),
    )  # fmt: skip
    for one in found.runs:
        table.add_row(*(plain(cell, "red" if one.failed else "") for cell in _cells(one)))
    return Screen(Tabled(table), Text(), plain(f"{number(len(found.runs), 'run')} of {found.history}", "dim"))


def _cells(one: Entry) -> Iterator[str]:
    yield str(one.id)
    yield moment(one.started)
    yield commit_text(one)
    yield step_text(one)
    yield shown("memory", one.peak_bytes)
    yield one.bound or one.status
    yield one.host
    yield shlex.join(one.command)


def step_text(one: Entry) -> str:
    """Its step time; of a tune the speed-up, of a check the verdict."""
    ratio = "" if one.ratio is None else f"{one.ratio:.2f}× "
    if one.kind == "tune":
        return f"{ratio}tuned" if ratio else "no gain"
    if one.kind == "check":
        return f"{ratio}{one.status}"
    return shown("step", one.step_ms)


def commit_text(one: Entry) -> str:
    """`1a2b3c4d5e+`, with a plus where the tree had changes."""
    return f"{(one.commit or '')[:SHORT]}{'+' if one.commit and one.dirty else ''}"


def moment(at: float) -> str:
    """A time, to the minute."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "unknown"


def shown(measure: str, value: float | None) -> str:
    """A value in the measure's unit; "" where it is not known."""
    if value is None:
        return ""
    if measure == "memory":
        return f"{count(value / 2**20)} MiB" if value < 2**30 else f"{count(value / 2**30)} GiB"
    return ms(value * 1000) if measure == "startup" else ms(value)


def changes_screen(found: HistoryReport) -> RenderableType:
    """Each series: red flags, and its measures with their changes."""
    if not found.series:
        return Screen(plain(f"no such run in {found.history}"))
    return Screen(*(block for one in found.series for block in _series(one)))


def series_text(one: Series) -> str:
    """What it is, on one line."""
    return " · ".join(filter(None, (one.command, one.levers if one.levers != "[]" else "", one.host, one.device)))


def _series(one: SeriesReport) -> Iterator[RenderableType]:
    yield plain(series_text(one.series), "bold")
    yield from (Padding(plain(f"flag  {flag.text}", "red"), (0, 0, 0, 2)) for flag in one.flags)
    for trend in one.trends:
        yield Padding(Parts(_trend(trend)), (0, 0, 0, 2))
        for change in trend.changes:
            yield Padding(Parts(_change(trend.measure, change)), (0, 0, 0, 4))
            yield from (Padding(plain(line, "dim"), (0, 0, 0, 6)) for line in change_lines(change))
    yield Text()


def _trend(one: Trend) -> Iterator[str]:
    last = one.segments[-1]
    yield f"{MEASURES[one.measure]}  {shown(one.measure, last.middle)}"
    if last.low is not None and last.high is not None:
        yield f"{shown(one.measure, last.low)} – {shown(one.measure, last.high)} (95%)"
    runs = last.last - last.first + 1
    yield f"{number(runs, 'run')}{'' if last.first == 0 else f' of {len(one.values)}, since the last change'}"
    if one.drift is not None:
        drift = one.drift
        yield f"drifts by {drift.ratio - 1:+.2%} a commit ({drift.low - 1:+.2%} to {drift.high - 1:+.2%}, 99%)"
        yield f"{drift.total - 1:+.1%} over {drift.commits} commits"
    elif not one.changes:
        yield "no change" if len(one.values) >= LEAST else "too few to tell a change"


def _change(measure: str, one: ChangePoint) -> Iterator[str]:
    yield f"{shown(measure, one.before)} → {shown(measure, one.after)} ({one.ratio:.2f}×)"
    yield between_text(one)


def between_text(one: ChangePoint) -> str:
    """Between which commits it is."""
    if one.commit_before and one.commit_before == one.commit_after:
        return f"at commit {one.commit_after[:SHORT]}, unchanged"
    names = [(text or "no commit")[:SHORT] for text in (one.commit_before, one.commit_after)]
    return f"between {names[0]} and {names[1]}"


def change_lines(one: ChangePoint) -> Sequence[str]:
    """The commits that it may be, and what else is different."""
    also = [f"also: {diff.what} {diff.before or 'not set'} → {diff.after or 'not set'}" for diff in one.also]
    return [clean(line) for line in (*one.commits, *also)]
