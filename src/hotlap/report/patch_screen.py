"""What a patch wrote and what it could not, on one screen."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from ..records.durations import ms
from ..records.patch import Line, NotWritten, Patch, Rewrite, Verification, Written
from .console import CommandLine, Screen, columns, labelled, number, percent, plain, ratio
from .tune_screen import interval_text, settings_text


def patch_screen(patch: Patch, diff: Path | None) -> RenderableType:
    """The result of a patch: what stands in the source now, what does not and where to look, how to start it."""
    left = patch.not_written or not all(item.written for item in patch.findings)
    return Screen(
        plain(_headline(patch), "bold yellow" if left else "bold green"),
        *_findings(patch.findings),
        *_written(patch.written),
        *_not_written(patch.not_written),
        *_verification(patch.verification),
        *_end(patch, diff),
    )


def _headline(patch: Patch) -> str:
    files = ", ".join(f"{file.file} (+{file.added} −{file.removed})" for file in patch.files) or "nothing to change"
    done = "applied" if patch.applied else "written as a diff"
    if patch.run:
        return _of_run(patch, f"{done}: {files}")
    levers = number(len(patch.written) + len(patch.not_written), "lever")
    if not patch.written:
        return f"none of {levers} can be written into the source"
    return f"{len(patch.written)} of {levers} {done}: {files}"


def _of_run(patch: Patch, done: str) -> str:
    waits, rewritten = number(len(patch.findings), "wait"), sum(bool(item.written) for item in patch.findings)
    if not patch.findings:
        return (
            f"{patch.run} has no finding that the host waits for the device. On CUDA, hotlap run --profile looks for "
            "such waits"
        )
    return f"{rewritten} of {waits} {done}" if rewritten else f"none of {waits} can be rewritten"


def _findings(findings: Iterable[Rewrite]) -> Iterator[RenderableType]:
    for item in findings:
        where = f"{item.at.file}:{item.at.line}: {item.at.text}" if item.at is not None else item.finding
        yield _indented(2, f"{percent(item.share)}  {where}")
        if item.written:
            state = "a change to review: " if item.review else ""
            yield _indented(4, f"{state}{item.written}", "yellow" if item.review else "green")
            yield from (_indented(4, note, "dim") for note in item.notes)
        else:
            yield _indented(4, f"not written: {item.why}", "yellow")
            yield from _by_hand(item.look_at, [item.instead] if item.instead else [])


def _by_hand(look_at: Iterable[Line], source: Sequence[str]) -> Iterator[RenderableType]:
    """The lines to look at, and what to write there."""
    for line in look_at:
        yield _indented(4, f"{line.file}:{line.line}: {line.text}")
    for at, text in enumerate(source):
        yield _indented(4, ("         " if at else "by hand: ") + text, "dim")


def _indented(columns: int, text: str, style: str = "") -> Text:
    return Text(" " * columns).append_text(plain(text, style))


def _written(written: Iterable[Written]) -> Iterator[RenderableType]:
    for item in written:
        state = "already there" if item.already else "in part" if item.partly else "written"
        yield _indented(2, f"{item.lever}{settings_text(item.settings)}: {state}{_at(item.where)}")
        yield from (_indented(4, note, "dim") for note in (item.partly, *item.notes) if note)


def _not_written(refused: Iterable[NotWritten]) -> Iterator[RenderableType]:
    for item in refused:
        yield _indented(2, f"{item.lever}{settings_text(item.settings)}: not written: {item.why}", "yellow")
        yield from _by_hand(item.look_at, item.source.splitlines())


def _verification(found: Verification | None) -> Iterator[RenderableType]:
    if found is None:
        return
    yield Text()
    if found.ratio is None or found.interval is None:
        yield plain(f"not verified: {found.why}", "bold red")
        return
    table = columns("", "step")
    table.add_row("command under the recipe", ms(found.recipe_ms))
    table.add_row("patched source", ms(found.patched_ms))
    yield table
    said = {True: "as fast as the recipe", False: "slower than the recipe", None: "the runs differ too much to tell"}
    same = said[found.same_speed]
    turns = f"{number(found.turns, 'turn')} each" if found.turns else "one after another"
    rests_on = f"{interval_text(found.interval)}; 2 fresh starts of each, {turns}"
    yield plain(f"{same}: {ratio(found.ratio)} ({rests_on})", "bold green" if found.same_speed else "bold yellow")
    if found.parity is not None:
        state = "parity holds" if found.parity.ok else "parity FAILS"
        yield plain(f"{state}, {found.parity.level}: {found.parity.why}", "" if found.parity.ok else "bold red")


def _end(patch: Patch, diff: Path | None) -> Iterator[RenderableType]:
    rows: list[tuple[str, RenderableType]] = [("skipped", plain(text)) for text in patch.skipped]
    if patch.run and patch.files:
        rows.append(("in", plain(patch.cwd)))
    if patch.launch:
        rows.append(("start", CommandLine(patch.launch)))
    if diff is not None:
        rows.append(("diff", plain(diff)))
    if rows:
        yield Text()
        yield labelled(rows)


def _at(lines: Iterable[Line]) -> str:
    places = ", ".join(dict.fromkeys(f"{line.file}:{line.line}" for line in lines))
    return f", {places}" if places else ""
