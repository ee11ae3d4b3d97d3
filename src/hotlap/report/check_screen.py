"""The result of a check, on one screen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ..records.check import PEAK_MEMORY, Call, Check, Judged, Version
from ..records.durations import ms
from ..records.phases import PHASES
from ..records.sizes import size_text
from .console import Screen, Tabled, at_place, columns, count, labelled, minutes, number, plain

STYLES: Final = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}
CALLS: Final[dict[Call, str]] = {
    "slower": "over", "within": "ok", "open": "not told", "unknown": "not measured",
}  # fmt: skip


def check_screen(check: Check, folder: Path) -> RenderableType:
    """The verdict, what was judged, and where the time went."""
    return Screen(
        plain(headline(check), STYLES[check.verdict]),
        Text(),
        _table(check),
        Text(),
        labelled((label, plain(text)) for label, text in (*notes(check), ("records", str(folder)))),
    )


def headline(check: Check) -> str:
    """`FAIL: step time +12.3%`."""
    return f"{check.verdict.upper()}: {check.why}"


def _table(check: Check) -> RenderableType:
    table = columns("", "baseline", "new", "change", "95%", "allowed", "", right=("baseline", "new", "change"))
    for row in rows(check):
        table.add_row(*map(plain, row))
    return Tabled(table)


def rows(check: Check) -> list[tuple[str, ...]]:
    """A row for each quantity: its name, both values, change, interval, what is allowed, the call."""
    return [_row(one) for one in check.judged]


def _row(one: Judged) -> tuple[str, ...]:
    of = f" {one.why}" if one.why and one.unit else ""
    share = bool(one.unit)
    change = "" if one.change is None else f"{one.change:+.1%}" if share else f"{one.change:+g}"
    interval = ""
    if one.interval is not None:
        low, high = one.interval.low, one.interval.high
        interval = f"{low:+.1%} to {high:+.1%}" if share else f"{low:+g} to {high:+g}"
    allowed = f"{one.limit:.0%}{of}" if share else f"below {one.limit:g}"
    return (
        one.what,
        value_text(one, one.before),
        value_text(one, one.after),
        change,
        interval,
        allowed,
        CALLS[one.call],
    )


def value_text(one: Judged, value: float | None) -> str:
    """A value in its unit."""
    if value is None:
        return "unknown"
    if one.what == PEAK_MEMORY:
        return size_text(value)
    return ms(value) if one.unit == "ms" else f"{count(value)} {one.unit}".strip()


def notes(check: Check) -> Iterator[tuple[str, str]]:
    """What else is known, with labels."""
    yield "baseline", version_text(check.base)
    yield "new version", version_text(check.head)
    for number_, one in enumerate(check.attempts, 1):
        how = f", {number(one.turns, 'turn')} of each" if one.how == "turns" else ", one after another"
        null = f"; starts of the baseline differ by up to {one.null:.1%}" if one.null is not None else ""
        label = "evidence" if number_ == 1 else "again"
        yield label, f"{number(one.starts, 'start')} of each version{how}, {minutes(one.seconds)}{null}"
    if check.parity is not None:
        yield "losses", check.parity.why if check.parity.ok else f"differ: {check.parity.why}"
    if check.target is not None:
        one_value = "not printed" if check.target.value is None else f"{check.target.value:g}"
        yield "target", f"{check.target.metric} {one_value}, wanted {check.target.compare} {check.target.wanted:g}"
    yield from cause_rows(check)
    for note in check.notes:
        yield "note", note


def cause_rows(check: Check) -> Iterator[tuple[str, str]]:
    """Of a failure: the phase, the findings, the commit."""
    found = check.cause
    if found is not None:
        grown = ((name, getattr(found.before, name) or 0.0, getattr(found.after, name) or 0.0) for name in PHASES)
        worst = [f"{name} {ms(one)} → {ms(two)}" for name, one, two in grown if two - one > 0.1 * max(found.ms, 1e-9)]
        if worst:
            yield "grew", " · ".join(worst)
        for finding in found.findings:
            yield "cause", f"{finding.title or finding.id}{at_place(finding.where, before=' ')}"
    if check.bisected is not None:
        one = check.bisected
        tried = f"{number(one.tried, 'commit')} of {one.of} measured"
        skipped = f", {len(one.skipped)} that do not run" if one.skipped else ""
        brought = " made it faster" if one.faster else ""
        said = f"{one.commit[:10]} {one.subject}{brought}" if one.commit else f"not found: {one.why}"
        yield "commit", f"{said} ({tried}{skipped})"


def version_text(version: Version) -> str:
    """`main (1a2b3c4d5e)`."""
    name, commit = version.name, (version.commit or "")[:10]
    if version.changed:
        name = f"{name}, with changes that are not committed"
    elif commit and (version.commit or "").startswith(name):
        name = commit
    elif commit:
        name = f"{name} ({commit})"
    return f"{name}, levers {', '.join(one.name for one in version.levers)}" if version.levers else name
