"""The commands of a suite, on one screen and as comma-separated values."""

import csv
import io
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..records.diagnosis import NOT_STEADY
from ..records.durations import ms
from ..records.sizes import size_text
from ..records.suite import Middle, Suite, SuiteRow
from .console import Parts, Screen, Tabled, at_place, between, columns, count, labelled, minutes, number, percent, plain

COLUMNS: Final = (
    "name", "outcome", "why", "starts", "step_ms", "step_ms_low", "step_ms_high", "step_p10_ms", "step_p90_ms",
    "throughput", "throughput_unit", "tokens_s", "bound", "finding", "finding_share", "peak_bytes", "peak_of",
    "startup_s", "cwd", "command",
)  # fmt: skip


def bench_screen(suite: Suite, folder: Path) -> RenderableType:
    """A row for each command, what limits each, and what did not run."""
    return Screen(
        Parts(_headline(suite), "bold"),
        Text(),
        Tabled(_table(suite)),
        Text(),
        labelled((name, plain(text, style)) for name, text, style in (*_notes(suite), ("records", str(folder), ""))),
    )


def _headline(suite: Suite) -> Iterator[str]:
    yield number(len(suite.rows), "command")
    yield f"{len(suite.rows) - len(suite.failed)} measured"
    yield minutes(suite.seconds)
    if not suite.complete:
        yield "interrupted"


def _table(suite: Suite) -> Table:
    names = ("command", "a step", "spread", "starts", "a second", "bound", "peak", "start-up")
    table = columns(*names, right=("a step", "starts", "a second", "peak", "start-up"))
    for row in suite.rows:
        table.add_row(*map(plain, cells(row)))
    return table


def cells(row: SuiteRow) -> tuple[str, ...]:
    """The row of a command. The spread is that of its starts, the lowest and the highest; of one start that of its
    steps, p10 and p90."""
    if row.step_ms is None:
        return (row.name, row.outcome, "", "", "", "", "", "")
    measured, spread = sum(one.outcome == "measured" for one in row.starts), ""
    if measured > 1:
        spread = between(row.step_ms.low, row.step_ms.high, "–")
    elif row.spread is not None:
        spread = between(row.spread.p10, row.spread.p90, "–")
    return (
        row.name, ms(row.step_ms.median), spread, str(measured), _rate(row), row.bound or "",
        size_text(row.peak_bytes.median) if row.peak_bytes else "",
        ms(1000 * row.startup_s.median) if row.startup_s else "",
    )  # fmt: skip


def _rate(row: SuiteRow) -> str:
    if row.tokens_s is not None:
        return f"{count(row.tokens_s.median)} tokens"
    if row.throughput is not None:
        return f"{count(row.throughput.median)} {row.throughput_unit.removesuffix('/s')}"
    return ""


def _notes(suite: Suite) -> Iterator[tuple[str, str, str]]:
    for row in suite.rows:
        if row.outcome != "measured":
            yield row.name, f"{row.outcome}{': ' if row.why else ''}{row.why}", "red" if row.starts else "yellow"
        elif row.why:
            yield row.name, row.why, "yellow"
        for said in row.unknown:
            if said.startswith(NOT_STEADY):
                yield row.name, said, "yellow"
        if row.finding is not None:
            share = f" ({percent(row.finding.share)} of the time)" if row.finding.share else ""
            place = at_place(row.finding.where, row.cwd, before=" ")
            yield row.name, f"{row.finding.title or row.finding.id}{share}{place}", ""
        for lever, why in row.left_out.items():
            yield row.name, f"not in: {lever}: {why}", "yellow"


def bench_csv(suite: Suite) -> bytes:
    """A line for each command, after one of names; empty where unknown. Times in ms and s, sizes in bytes."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for row in suite.rows:
        finding, spread = row.finding, row.spread
        table.writerow((
            row.name, row.outcome, row.why, sum(one.outcome == "measured" for one in row.starts),
            *_of(row.step_ms), *((spread.p10, spread.p90) if spread else ("", "")),
            _median(row.throughput), row.throughput_unit if row.throughput else "", _median(row.tokens_s),
            row.bound or "", (finding.title or finding.id) if finding else "", finding.share if finding else "",
            _median(row.peak_bytes), row.peak_of if row.peak_bytes else "", _median(row.startup_s),
            row.cwd, shlex.join(row.words),
        ))  # fmt: skip
    return text.getvalue().encode("utf-8", "replace")


def _of(value: Middle | None) -> tuple[float | str, ...]:
    return (value.median, value.low, value.high) if value else ("", "", "")


def _median(value: Middle | None) -> float | str:
    return value.median if value else ""
