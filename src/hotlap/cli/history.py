"""`hotlap history`."""

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from hotlap.launch.environment import project_of
from hotlap.records.errors import HotlapError, RecordError, UsageError, missing_named
from hotlap.records.history import HistoryRuns
from hotlap.report.console import plain, stderr_console, stdout_console
from hotlap.report.history_screen import changes_screen, runs_screen

from ._common import print_json

DB: Final = "File or postgresql:// URL of the history; by default $HOTLAP_DB, else ~/.local/share/hotlap/history.db."
SINCE: Final = "Only runs that began since: 12h, 30d, 2026-11-01."
PROJECT: Final = "Of this project; by default the repository or folder here."
HISTORY: Final = "Add it to the history when it has ended; so is every run where $HOTLAP_DB is set."
Db = Annotated[str | None, typer.Option(metavar="FILE|URL", help=DB)]
Command = Annotated[str, typer.Option(help="Only commands with this text in them.")]
Host = Annotated[str, typer.Option(help="Only runs on this machine.")]
Since = Annotated[str | None, typer.Option(help=SINCE)]
Project = Annotated[str | None, typer.Option(help=PROJECT)]
All = Annotated[bool, typer.Option("--all", help="Of all projects.")]
Json = Annotated[bool, typer.Option(help="Print the document instead.")]

history = typer.Typer(invoke_without_command=True, help="Remember runs, and tell what changed since.")


@history.callback()
def _history(
    context: typer.Context,
    db: Db = None,
    project: Project = None,
    all_: All = False,
    command: Command = "",
    host: Host = "",
    commit: Annotated[str, typer.Option(help="Only runs of the commit that begins so.")] = "",
    since: Since = None,
    last: Annotated[int, typer.Option(min=1, max=1000, help="Runs to show.")] = 20,
    json: Json = False,
) -> int:
    """Show the last runs of this project. `add` adds runs, `changes` tells what changed.

    Examples:

      hotlap history --commit 1a2b3c4

      hotlap history add hotlap-runs/1121-103000-run-train

      hotlap history changes --since 30d
    """
    if context.invoked_subcommand is not None:
        return 0
    with missing_named("history"):
        from hotlap.guard.history import open_history
    with open_history(db) as found:
        wanted = _wanted(project, all_, command, host, since, commit)
        document = HistoryRuns(history=found.name, runs=tuple(found.entries(wanted, last)))
    print_json(document) if json else stdout_console().print(runs_screen(document))
    return 0


@history.command()
def add(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, tunes or checks.")],
    db: Db = None,
    project: Annotated[
        str | None, typer.Option(help="Name of the project; by default its repository or folder.")
    ] = None,
) -> int:
    """Add runs to the history. Adding one again changes nothing.

    Example:

      hotlap history add hotlap-runs/*
    """
    with missing_named("history"):
        from hotlap.guard.entry import entry_of
        from hotlap.guard.history import open_history
    failed = 0
    with open_history(db, make=True) as found:
        for folder in folders:
            try:
                entry = entry_of(folder, project)
            except RecordError as error:
                failed += 1
                stderr_console().print(plain(f"hotlap: {error}", "red"), soft_wrap=True)
                continue
            said = "added" if found.add(entry) else "known"
            stdout_console(soft_wrap=True).print(plain(f"{said}  {folder}"))
    return HotlapError.exit_code if failed else 0


@history.command()
def changes(
    db: Db = None,
    project: Project = None,
    all_: All = False,
    command: Command = "",
    host: Host = "",
    since: Since = None,
    threshold: Annotated[float, typer.Option(min=0.01, max=1.0, help="Smallest change: 0.05 is 5%.")] = 0.05,
    json: Json = False,
) -> int:
    """Tell where step time, data wait, peak memory or start changed, at which commit, and what drifts.

    Example:

      hotlap history changes --since 90d
    """
    with missing_named("history"):
        from hotlap.guard.changes import MEASURES
        from hotlap.guard.history import open_history
        from hotlap.guard.report import report
    with open_history(db) as found:
        document = report(found, _wanted(project, all_, command, host, since), [*MEASURES], threshold, Path.cwd())
    print_json(document) if json else stdout_console().print(changes_screen(document))
    return 0


def _wanted(project: str | None, all_: bool, command: str, host: str, since: str | None, commit: str = "") -> Any:
    from hotlap.guard.history import Filter, moment

    if project is not None and all_:
        raise UsageError("--project or --all, not both")
    name = None if all_ else project or project_of(Path.cwd())
    began = None if since is None else moment(since)
    return Filter(project=name, command=command, host=host, commit=commit, since=began)


def remember(folder: Path, wanted: bool | None) -> None:
    """Add what has just ended to the history, where that is wanted. No failure here is one of the job's: it is told in
    one line, and the folder can be added later.

    wanted: as `--history` or `--no-history` say; None: where $HOTLAP_DB is set."""
    if wanted is False or (wanted is None and not os.environ.get("HOTLAP_DB")):
        return
    try:
        with missing_named("history"):
            from hotlap.guard.entry import entry_of
            from hotlap.guard.history import open_history
        with open_history(make=True) as found:
            found.add(entry_of(folder))
    except (HotlapError, OSError) as error:
        told = f"hotlap: not added to the history: {error}. Later: hotlap history add {folder}"
        stderr_console().print(plain(told, "yellow"), soft_wrap=True)
