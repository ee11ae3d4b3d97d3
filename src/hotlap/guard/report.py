"""What changed in a history: the trends of its series, and their red flags."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hotlap.records.history import Entry, Flag, HistoryReport, Series, SeriesReport, Trend

from .changes import MEASURES, THRESHOLD, trend
from .flags import flags
from .history import Filter, History

MOST_SERIES: Final = 20
MOST_RUNS: Final = 500


def report(
    history: History, wanted: Filter, measures: Sequence[str], threshold: float = THRESHOLD, here: Path | None = None
) -> HistoryReport:
    """Of the series that ran last. here: a folder whose repository names the commits. Raises RecordError."""
    found = [one for one in history.series(wanted, 5 * MOST_SERIES) if one.kind == "run"][:MOST_SERIES]
    made = [of_series(one, _since(history, one, wanted), measures, threshold, here) for one in found]
    return HistoryReport(history=history.name, series=tuple(one for one in made if one.trends))


def _since(history: History, series: Series, wanted: Filter) -> list[Entry]:
    entries = history.of_series(series.id, MOST_RUNS)
    return [one for one in entries if wanted.since is None or one.started >= wanted.since]


def of_series(
    series: Series, entries: Sequence[Entry], measures: Sequence[str] = tuple(MEASURES),
    threshold: float = THRESHOLD, here: Path | None = None,
) -> SeriesReport:  # fmt: skip
    """Of one series, its runs in any order."""
    trends: list[Trend] = [trend(measure, entries, threshold, here) for measure in measures]
    told = [one for one in trends if one.values]
    found: list[Flag] = flags({one.measure: one for one in told}, sorted(entries, key=lambda one: one.order))
    return SeriesReport(series=series, trends=tuple(told), flags=tuple(found))
