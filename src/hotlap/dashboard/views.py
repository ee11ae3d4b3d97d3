"""What each page shows: the history's answers as its template takes them."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from hotlap.diagnose.compare import differences
from hotlap.guard.changes import MEASURES
from hotlap.guard.history import Filter, History
from hotlap.guard.report import of_series
from hotlap.records.history import ChangePoint, Entry, Series, Trend
from hotlap.records.phases import PHASES
from hotlap.report.console import count, minutes
from hotlap.report.history_screen import between_text, change_lines, commit_text, moment, shown, step_text

MOST_SERIES: Final = 30
MOST_RUNS: Final = 200
SPARK_RUNS: Final = 40
LATEST_RUNS: Final = 10
SHOWN_RUNS: Final = 30
SHOWN_COMMITS: Final = 30
TITLES: Final = {
    "step": "step time",
    "data": "wait for data",
    "memory": "peak memory",
    "startup": "time to the first step",
}
UNITS: Final = {"step": "ms", "data": "ms", "memory": "MiB", "startup": "s"}
SCALE: Final = {"step": 1.0, "data": 1.0, "memory": 2.0**-20, "startup": 1.0}


def overview(history: History, wanted: Filter, measure: str) -> dict[str, Any]:
    """The series that ran last, and the trend of the first."""
    found = history.series(wanted, MOST_SERIES)
    rows = [_row(history, one, measure) for one in found]
    first = next((one for one in found if one.kind == "run"), None)
    projects, hosts = history.names()
    return {
        "rows": rows,
        "more": len(found) == MOST_SERIES,
        "projects": projects,
        "hosts": hosts,
        "trend": None if first is None else trend_of(history, first, measure),
    }


def _row(history: History, series: Series, measure: str) -> dict[str, Any]:
    entries = [*reversed(history.of_series(series.id, SPARK_RUNS))]
    values = [value for one in entries if (value := MEASURES[measure](one)) is not None]
    usual = median(values[:-1]) if len(values) > 1 else None
    last = entries[-1] if entries else None
    return {
        "series": series,
        "last": last,
        "began": moment(series.last),
        "value": step_text(last) if last and last.kind != "run" else shown(measure, values[-1] if values else None),
        "ratio": values[-1] / usual if usual else None,
        "spark": spark(values),
        "failed": last is not None and last.failed,
    }


def spark(values: Sequence[float], width: int = 120, height: int = 24) -> str:
    """The points of a line that shows them, "" of fewer than two."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    over = (high - low) or 1.0
    at = (
        (number / (len(values) - 1) * width, height - 2 - (value - low) / over * (height - 4))
        for number, value in enumerate(values)
    )
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in at)


def trend_of(history: History, series: Series, measure: str) -> dict[str, Any]:
    """A series by one measure: the chart, its changes, its commits, its runs."""
    entries = history.of_series(series.id, MOST_RUNS)
    report = of_series(series, entries)
    one = next((trend for trend in report.trends if trend.measure == measure), None)
    return {
        "series": series,
        "measure": measure,
        "title": TITLES[measure],
        "flags": report.flags,
        "trend": one,
        "changes": [] if one is None else [_change(measure, change) for change in reversed(one.changes)],
        "commits": [] if one is None else [*_by_commit(one)],
        "segment": one.segments[-1] if one and one.segments else None,
        "runs": [_run(entry) for entry in entries[:SHOWN_RUNS]],
        "chart": None if one is None else _chart(one, {entry.id: entry for entry in entries}),
    }


def _run(entry: Entry) -> dict[str, Any]:
    return {
        "entry": entry,
        "commit": commit_text(entry),
        "began": moment(entry.started),
        "step": step_text(entry),
        "memory": shown("memory", entry.peak_bytes),
        "startup": shown("startup", entry.startup_s),
    }


def _change(measure: str, one: ChangePoint) -> dict[str, Any]:
    before, after = shown(measure, one.before), shown(measure, one.after)
    return {"change": one, "moved": f"{before} → {after}", "between": between_text(one), "lines": change_lines(one)}


def _by_commit(one: Trend) -> Iterator[dict[str, Any]]:
    """The latest commits of a trend, the latest first: median and range of their runs."""
    by: dict[str | None, list[float]] = {}
    for commit, value in zip(one.commits, one.values, strict=True):
        by.setdefault(commit, []).append(value)
    for commit, values in [*reversed(by.items())][:SHOWN_COMMITS]:
        low, middle, high = (shown(one.measure, value) for value in (min(values), median(values), max(values)))
        yield {
            "commit": commit,
            "value": median(values),
            "shown": middle,
            "range": f"{low} – {high}",
            "runs": len(values),
        }


def _chart(one: Trend, entries: Mapping[int, Entry]) -> dict[str, Any]:
    """What `trend.js` draws, in the unit of the axis."""
    scale = SCALE[one.measure]
    of = [entries[number] for number in one.ids]
    spread = one.measure == "step"
    return {
        "title": TITLES[one.measure],
        "unit": UNITS[one.measure],
        "ids": one.ids,
        "values": [value * scale for value in one.values],
        "low": [entry.p10_ms for entry in of] if spread else None,
        "high": [entry.p90_ms for entry in of] if spread else None,
        "texts": [f"run {entry.id} · {commit_text(entry) or 'no commit'} · {moment(entry.started)}" for entry in of],
        "segments": [
            {
                "first": part.first,
                "last": part.last,
                "middle": part.middle * scale,
                "low": None if part.low is None else part.low * scale,
                "high": None if part.high is None else part.high * scale,
            }
            for part in one.segments
        ],
        "changes": [
            {"at": change.at, "ratio": change.ratio, "commit": (change.commit_after or "")[:10]}
            for change in one.changes
        ],
    }


def hosts_of(history: History, series: Series, measure: str) -> list[dict[str, Any]]:
    """The same command on each machine: its latest level."""
    made = []
    for one in history.siblings(series):
        values = [
            value for entry in history.of_series(one.id, LATEST_RUNS) if (value := MEASURES[measure](entry)) is not None
        ]
        if values:
            low, high = shown(measure, min(values)), shown(measure, max(values))
            made.append(
                {
                    "series": one,
                    "shown": shown(measure, median(values)),
                    "range": f"{low} – {high}",
                    "runs": len(values),
                }
            )
    return made


def run_of(entry: Entry) -> dict[str, Any]:
    """One run."""
    return {**_run(entry), "rows": [*_rows(entry)], "phases": _phases(entry)}


def _rows(one: Entry) -> Iterator[tuple[str, str]]:
    machine = one.environment
    ended = one.status if one.exit_code is None else f"{one.status}, exit code {one.exit_code}"
    told = {
        "command": shlex.join(one.command),
        "levers": ", ".join(lever.name for lever in one.levers),
        "project": one.project,
        "commit": f"{one.commit or ''}{' with changes' if one.dirty else ''}",
        "began": moment(one.started),
        "ended": ended,
        "took": "" if one.wall_s is None else minutes(one.wall_s),
        "bound": one.bound or "",
        "first finding": one.finding or "",
        "throughput": "" if one.throughput is None else f"{count(one.throughput)} {one.throughput_unit}",
        "host": one.host,
        "device": one.device,
        "machine": f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:.0f} GiB",
        "torch": one.torch or "",
        "driver": machine.driver or "",
        "hotlap": machine.hotlap,
        "records": one.folder,
    }
    return ((name, text) for name, text in told.items() if text)


def _phases(one: Entry) -> list[tuple[str, float, str]]:
    """Name, ms, and that in words, of what is known."""
    values = ((name, getattr(one.phases, name)) for name in PHASES)
    return [(name, value, shown("step", value)) for name, value in values if value is not None]


def comparison(before: Entry, after: Entry) -> dict[str, Any]:
    """One run against another."""
    differs, unknown = differences(before.run(), after.run())
    rows = [_pair(TITLES[name], name, of(before), of(after)) for name, of in MEASURES.items() if name != "data"]
    phases = [_pair(name, "step", getattr(before.phases, name), getattr(after.phases, name)) for name in PHASES]
    return {
        "before": _run(before),
        "after": _run(after),
        "rows": [row for row in (*rows, *phases) if row["before"] or row["after"]],
        "differs": differs,
        "unknown": unknown,
    }


def _pair(name: str, measure: str, before: float | None, after: float | None) -> dict[str, Any]:
    ratio = after / before if before and after is not None else None
    return {"name": name, "before": shown(measure, before), "after": shown(measure, after), "ratio": ratio}


def others(history: History, one: Entry) -> list[dict[str, Any]]:
    """Runs that it can be compared with, the latest first."""
    return [_run(entry) for entry in history.beside(one.id, SHOWN_RUNS)]
